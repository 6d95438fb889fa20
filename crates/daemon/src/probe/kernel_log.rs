//! The kernel's own log: whether a refusal is written there, for people to find.
//!
//! A call that ends the process is written as an audit record, whether audit is switched on or not. What Landlock refused
//! is written only where audit is on, from Linux 6.15. Where `auditd` runs, it gets the records and this log does not.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const PATH: &str = "/dev/kmsg";
/// The kernel gives one message for each read, and none is longer.
const LONGEST: usize = 16 * 1024;

/// The log from a moment on.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
    since: Vec<String>,
}

/// An audit record of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// `AUDIT_LANDLOCK_ACCESS`: a file or socket was refused by Landlock.
    Landlock,
    /// `AUDIT_SECCOMP`: a system call ended the process.
    Seccomp,
}

impl Record {
    /// Its number, as in `type=1326`.
    pub fn number(self) -> u32 {
        match self {
            Self::Landlock => 1423,
            Self::Seccomp => 1326,
        }
    }
}

impl KernelLog {
    /// What is written from now on.
    ///
    /// # Errors
    /// If this user can't read it: `kernel.dmesg_restrict`, or a container.
    pub fn from_now() -> io::Result<Self> {
        Self::open(Path::new(PATH))
    }

    fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { file, since: Vec::new() })
    }

    /// The record of a refusal of process `pid`, if one was written until now.
    pub fn refusal_of(&mut self, pid: u32) -> Option<Record> {
        let mut message = vec![0; LONGEST];
        loop {
            match self.file.read(&mut message) {
                Ok(0) => break,
                Ok(length) => self.since.push(String::from_utf8_lossy(&message[..length]).into_owned()),
                // Some were overwritten before they were read; the next read goes on behind them.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        refusal_of(pid, &self.since)
    }
}

fn refusal_of(pid: u32, messages: &[String]) -> Option<Record> {
    let pid = pid.to_string();
    let of_process = |number: &str| {
        messages.iter().find(|message| {
            field(message, "audit: type") == Some(number) && field(message, "pid") == Some(pid.as_str())
        })
    };
    if of_process("1326").is_some() {
        return Some(Record::Seccomp);
    }
    // What was refused is said of a domain, and whose domain that is in a record of its own.
    let domain = field(of_process("1424")?, "domain");
    let refused = |message: &String| {
        field(message, "audit: type") == Some("1423") && field(message, "domain") == domain
    };
    messages.iter().any(refused).then_some(Record::Landlock)
}

/// The value of `name=value`. Names of programs, which others choose, are in quotes or in hexadecimal.
fn field<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = message.split_once(&format!("{name}="))?;
    value.split([' ', '\n']).next()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// As Linux 6.18 writes them.
    const EXECVE: &str = "5,901,11468275898,-;audit: type=1326 audit(1796056625.689:32): auid=4294967295 uid=0 gid=0 \
                          ses=4294967295 pid=26984 comm=\"casemate-kms\" exe=\"/bin/casemate-kms\" sig=31 \
                          arch=c000003e syscall=59 compat=0 ip=0x7ff734045ad7 code=0x80000000\n";
    const PASSWD: &str = "5,902,11481482109,-;audit: type=1423 audit(1796056638.897:47): domain=172672a74 \
                          blockers=fs.read_file path=\"/etc/passwd\" dev=\"vda\" ino=737\n";
    const DOMAIN: &str = "5,903,11481482114,-;audit: type=1424 audit(1796056638.897:47): domain=172672a74 \
                          status=allocated mode=enforcing pid=27455 uid=0 exe=\"/bin/casemate-kms\" \
                          comm=\"casemate-kms\"\n";

    fn refusal(pid: u32, messages: &[&str]) -> Option<Record> {
        refusal_of(pid, &messages.iter().map(|message| (*message).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_record_is_of_the_process_that_it_names() {
        assert_eq!(refusal(26984, &[EXECVE]), Some(Record::Seccomp));
        assert_eq!(refusal(2698, &[EXECVE]), None);
        assert_eq!(refusal(27455, &[EXECVE, PASSWD, DOMAIN]), Some(Record::Landlock));
        assert_eq!(refusal(27455, &[EXECVE, DOMAIN]), None);
        assert_eq!(refusal(27455, &[&PASSWD.replace("2a74", "2a75"), DOMAIN]), None);
        assert_eq!(refusal(1, &[]), None);
    }

    #[test]
    fn only_what_is_written_later_counts() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(EXECVE.as_bytes()).unwrap();
        let mut log = KernelLog::open(file.path()).unwrap();
        assert_eq!(log.refusal_of(26984), None);
        file.write_all(EXECVE.as_bytes()).unwrap();
        assert_eq!(log.refusal_of(26984), Some(Record::Seccomp));
    }
}
