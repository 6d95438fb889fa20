//! How a daemon starts, is confined, observed and stopped.
//!
//! What is promised: after [`confine::confine`] a process that is broken into can start no program, make no process,
//! look into no other one, speak to no network and open no file outside the declared folders, as far as the kernel can
//! enforce it; and what the kernel can't is said, never passed over. No async runtime, no cluster, none of our crates:
//! small enough to audit.
//!
//! * [`confine`]: the whole of it, and what is enforced; the allow-list of system calls in [`confine::calls`];
//! * [`keeper`]: starts other processes for one that can't any more;
//! * [`probe`]: tries from inside what must fail;
//! * [`log`]: lines for people or programs;
//! * [`notify`]: tells systemd that the daemon is ready, alive, stopping.

pub mod confine;
pub mod keeper;
pub mod log;
pub mod notify;
pub mod probe;
