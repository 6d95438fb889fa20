#![allow(clippy::unwrap_used)]
use aws_lc_rs::digest;
use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::*;

#[test]
fn the_policy_lets_our_style_in() {
    let hash = STANDARD.encode(digest::digest(&digest::SHA256, STYLE.as_bytes()));
    assert_eq!(STYLE_HASH, hash, "put this into STYLE_HASH of page.rs");
    assert!(!STYLE.contains("</") && !STYLE.contains("http"), "it would end the element, or load something");
}

mod colours {
    use std::collections::BTreeMap;

    use super::STYLE;

    type Colour = [f64; 3];
    type Sheet = BTreeMap<&'static str, Colour>;

    const INKS: [&str; 8] = ["blue", "teal", "violet", "amber", "sky", "rose", "plain", "trouble"];

    /// Custom properties of the page on a light screen, on a dark one, and on paper.
    fn sheets() -> Vec<(&'static str, Sheet)> {
        let sheets = STYLE.split(":root {").skip(1).map(|block| {
            let block = block.split('}').next().unwrap();
            let declared =
                block.split(';').filter_map(|line| line.trim().strip_prefix("--")?.split_once(": #"));
            declared.map(|(name, hex)| (name, colour(hex))).collect()
        });
        let sheets: Vec<(&str, Sheet)> = ["light", "dark", "paper"].into_iter().zip(sheets).collect();
        assert_eq!(sheets.len(), 3);
        sheets
    }

    /// Linear light.
    fn colour(hex: &str) -> Colour {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        [channel(0), channel(2), channel(4)]
    }

    /// As WCAG 2 has it.
    fn contrast(one: Colour, other: Colour) -> f64 {
        let light = |[r, g, b]: Colour| 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
        let (one, other) = (light(one), light(other));
        one.max(other) / one.min(other)
    }

    /// How people see who lack one kind of cone; the matrices of Machado, Oliveira and Fernandes (2009) for all of it.
    const SIGHTS: [(&str, [Colour; 3]); 4] = [
        ("all", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "protan",
            [
                [0.152286, 1.052583, -0.204868],
                [0.114503, 0.786281, 0.099216],
                [-0.003882, -0.048116, 1.051998],
            ],
        ),
        (
            "deutan",
            [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
        ),
        (
            "tritan",
            [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
        ),
    ];

    /// How different two colours look: distance in OKLab, times 100.
    fn distance(one: Colour, other: Colour) -> f64 {
        let lab = |[r, g, b]: Colour| {
            let l = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b).max(0.0).cbrt();
            let m = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b).max(0.0).cbrt();
            let s = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b).max(0.0).cbrt();
            [
                0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
                1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
                0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
            ]
        };
        let pairs = lab(one).into_iter().zip(lab(other));
        pairs.map(|(one, other)| (one - other).powi(2)).sum::<f64>().sqrt() * 100.0
    }

    #[test]
    fn text_and_plots_stand_out() {
        for (name, sheet) in sheets() {
            let checked = |front: &str, back: &str, least: f64| {
                let found = contrast(sheet[front], sheet[back]);
                assert!(found >= least, "{name}: {front} on {back} has a contrast of {found:.2}");
            };
            for back in
                ["page", "surface", "track", "good-ground", "bad-ground", "open-ground", "note-ground"]
            {
                checked("ink", back, 7.0);
            }
            checked("soft", "page", 4.5);
            checked("soft", "surface", 4.5);
            for tone in ["good", "bad", "open", "note"] {
                checked(tone, "surface", 4.5);
                checked(tone, &format!("{tone}-ground"), 4.5);
            }
            for ink in INKS {
                checked(ink, "surface", 3.0);
            }
        }
    }

    #[test]
    fn the_colour_blind_tell_inks_apart() {
        let mut too_close = Vec::new();
        for (name, sheet) in sheets() {
            for (sight, matrix) in SIGHTS {
                let seen = |ink: &str| {
                    matrix.map(|row| {
                        row.iter().zip(sheet[ink]).map(|(share, light)| share * light).sum::<f64>()
                    })
                };
                for (place, one) in INKS.iter().enumerate() {
                    for other in &INKS[..place] {
                        // The last two are hatched as nothing else is.
                        let found = distance(seen(one), seen(other));
                        if found < 8.0 && place < 6 {
                            too_close
                                .push(format!("{name}, {sight}: {other} and {one} are {found:.1} apart"));
                        }
                    }
                }
            }
        }
        assert!(too_close.is_empty(), "{}", too_close.join("\n"));
    }
}
