//! What systemd is told (`Type=notify`). Without a `NOTIFY_SOCKET` nobody is told, and all of it does nothing.

use std::time::Duration;

use sd_notify::NotifyState;

/// It serves.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// It reads its configuration anew, until [`ready`] (`Type=notify-reload`).
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the clock can't be read for systemd"),
    }
}

/// It is going to end.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// What `systemctl status` shows.
pub fn status(text: &str) {
    // The protocol is one assignment a line.
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    tell(&[NotifyState::Status(&line)]);
}

/// It is alive. To be called by what would stand still if it were not, every [`alive_every`].
pub fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How often [`alive`] is to be called: half of `WatchdogSec`, as systemd advises; `None` if nobody watches.
pub fn alive_every() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2).filter(|period| !period.is_zero())
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd can't be told");
    }
}
