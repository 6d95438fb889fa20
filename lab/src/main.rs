//! `casemate-lab`: the lab by hand, which `./dev lab` starts. `./dev lab help` says what it can.

use std::{env, fs, io, process::ExitCode};

use anyhow::Context as _;
use casemate_lab::{Encryption, Lab, Tool, bench, cache_dir, demo, demo::On, python, softhsm};

const USAGE: &str = "\
./dev lab: real Kubernetes parts on this machine

  ./dev lab up [--apiservers N] [--encryption-config FILE]
      Starts etcd and N (1) kube-apiservers, prints how to reach them, and runs until its standard
      input ends, or Ctrl-C. All of it ends with it, however it ends. Each server has its own copy of FILE.
  ./dev lab demo [--once] [--key-service file|openbao|softhsm]
      Tells the main job on them: encrypt, prove, rotate, migrate, prove; on a key service other than a file, live
      through its outage too. Stays up then, unless --once.
  ./dev lab tools [--bench]
      Prints the path of each program that the lab starts, or the benchmark, after building what is missing.
  ./dev lab bench coldstart|outage|idle|soak|census [OPTION VALUE...]
      Measures, and prints JSON; `./dev bench` runs it on the release build and makes tables of it.
  ./dev lab python
      Prints the path of a Python that has what the lab's programs import.
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["up", options @ ..] => up(options),
        ["demo", options @ ..] => tell(options),
        // For the lab itself: see `softhsm::Token::set_label` and `only_unwraps`.
        ["set-label", slot, id, label] => set_label(slot, id, label),
        ["only-unwraps", slot, id] => only_unwraps(slot, id),
        ["tools"] => tools(&Tool::LAB),
        ["tools", "--bench"] => tools(&Tool::BENCH),
        ["bench", what, options @ ..] => measure(what, options),
        ["python"] => python().map(|path| println!("{}", path.display())).map_err(Into::into),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        words => {
            let wrong = match words {
                [] => "say what to do".to_owned(),
                [word @ ("tools" | "python" | "help" | "--help" | "-h"), ..] => {
                    format!("{word} takes nothing more")
                }
                [word, ..] => format!("there is no {word:?}"),
            };
            eprint!("casemate-lab: {wrong}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("casemate-lab: {error:#}");
            if error.is::<Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// What is wrong with the command line.
#[derive(Debug, thiserror::Error)]
#[error("{0}; `./dev lab help` says what it can")]
struct Usage(String);

fn tell(options: &[&str]) -> anyhow::Result<()> {
    let (mut on, mut once) = (On::default(), false);
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        match *option {
            "--once" => once = true,
            "--key-service" => {
                let word = rest.next().ok_or_else(|| Usage(format!("demo: say which: {}", On::WORDS)))?;
                on = word.parse().map_err(|wrong| Usage(format!("demo: {wrong}")))?;
            }
            _ => return Err(Usage(format!("demo: there is no option {option}")).into()),
        }
    }
    demo::run(on, once)
}

/// The PIN comes on standard input.
fn set_label(slot: &str, id: &str, label: &str) -> anyhow::Result<()> {
    softhsm::relabel(slot.parse()?, &io::read_to_string(io::stdin())?, id, label)
}

fn only_unwraps(slot: &str, id: &str) -> anyhow::Result<()> {
    softhsm::restrict(slot.parse()?, &io::read_to_string(io::stdin())?, id)
}

fn tools(chosen: &[Tool]) -> anyhow::Result<()> {
    for tool in chosen {
        println!("{tool}\t{}", tool.path()?.display());
    }
    println!("cache\t{}", cache_dir()?.display());
    Ok(())
}

fn measure(what: &str, options: &[&str]) -> anyhow::Result<()> {
    let mut asked = bench::Options::default();
    let (pairs, rest) = options.as_chunks::<2>();
    let unfit = |wrong: String| Usage(format!("bench: {wrong}"));
    if let [option] = rest {
        return Err(unfit(format!("{option} needs a value")).into());
    }
    for [option, value] in pairs {
        asked.set(option, value).map_err(unfit)?;
    }
    let what = what.parse().map_err(unfit)?;
    println!("{:#}", bench::run(what, &asked)?);
    Ok(())
}

fn up(options: &[&str]) -> anyhow::Result<()> {
    let mut builder = Lab::builder("up");
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or_else(|| Usage(format!("up: {option} needs a value")))?;
        builder = match *option {
            "--apiservers" => match value.parse() {
                Ok(count @ 1..) => builder.apiservers(count),
                _ => return Err(Usage(format!("up: --apiservers {value}: a number from 1 is needed")).into()),
            },
            "--encryption-config" => builder.encryption(Encryption::Verbatim(
                fs::read_to_string(value).with_context(|| format!("can't read {value}"))?,
            )),
            _ => return Err(Usage(format!("up: there is no option {option}")).into()),
        };
    }
    let lab = builder.start()?;
    println!("folder\t{}", lab.dir().display());
    println!("etcd\t{}", lab.etcd().endpoint());
    println!("\texport ETCDCTL_ENDPOINTS={}", lab.etcd().endpoint());
    for server in lab.apiservers() {
        println!("{}\t{}", server.name(), server.url());
        println!("\texport KUBECONFIG={}", server.kubeconfig().display());
        println!(
            "\tits EncryptionConfiguration: {} (this copy is the one to edit)",
            server.encryption_file().display()
        );
    }
    // Nothing of kubectl in the user's home.
    println!("\texport KUBECACHEDIR={}", lab.dir().join("kubectl").display());
    println!("etcdctl\t{}", Tool::Etcdctl.path()?.display());
    println!("kubectl\t{}", Tool::Kubectl.path()?.display());
    eprintln!("casemate-lab: running until standard input ends (Ctrl-D), or Ctrl-C");
    // No signal handler: the kernel ends the servers of a process that is killed.
    io::copy(&mut io::stdin(), &mut io::sink()).context("can't wait for standard input")?;
    Ok(())
}
