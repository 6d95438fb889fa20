//! The system calls of a daemon: reviewed data, a reason for each group.
//!
//! * [`ALLOWED`]: what the async runtime, local sockets, files in declared folders and the allocator need.
//! * [`FATAL`]: what only someone who has broken in would try. The process is ended, which kernel and supervisor log.
//! * All others fail as if the kernel did not have them (`ENOSYS`): what libraries have a second way for. A daemon that
//!   meets one of these through a new version of a library goes on. `docs/decisions/0011` says more.
//!
//! Where the reason names a condition, the call is allowed only with such arguments.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use self::Condition::{Always, Data, Internet, Ioctls, Local, Own, Packets, Prctls, Remote, Thread};

/// System calls that are treated alike.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// What they are there for.
    pub reason: &'static str,
    /// With what arguments.
    pub condition: Condition,
    /// Name and number.
    pub calls: &'static [(&'static str, c_long)],
}

/// With what arguments a call is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Any.
    Always,
    /// Protection without `PROT_EXEC`: memory that is written never becomes code.
    Data,
    /// A socket of family `AF_INET`, `AF_INET6` or `AF_PACKET`.
    Internet,
    /// An ioctl that makes a descriptor non-blocking, close-on-exec, or asks whether it is a terminal.
    Ioctls,
    /// A socket of family `AF_UNIX`.
    Local,
    /// The calling process and no other.
    Own,
    /// A socket of family `AF_PACKET`.
    Packets,
    /// The name of a thread or of a piece of memory.
    Prctls,
    /// A socket of family `AF_INET` or `AF_INET6`.
    Remote,
    /// A thread, not a process.
    Thread,
}

macro_rules! calls {
    ($($number:ident)*) => { &[$((stringify!($number), libc::$number)),*] };
}

/// What a daemon does.
pub const ALLOWED: &[Group] = &[
    Group {
        reason: "bytes through open descriptors, and what is known about these",
        condition: Always,
        calls: calls![
            SYS_close SYS_dup SYS_fcntl SYS_fdatasync SYS_flock SYS_fstat SYS_fsync SYS_ftruncate SYS_getdents64
            SYS_lseek SYS_pread64 SYS_pwrite64 SYS_read SYS_readv SYS_write SYS_writev
        ],
    },
    Group {
        reason: "files by name: configuration, keys, state, sockets; which ones is for Landlock and permissions to say",
        condition: Always,
        calls: calls![
            SYS_faccessat SYS_faccessat2 SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_getcwd SYS_linkat
            SYS_mkdirat SYS_newfstatat SYS_openat SYS_readlinkat SYS_renameat SYS_renameat2 SYS_statx SYS_unlinkat
        ],
    },
    Group {
        reason: "the same, as a C library on this architecture still calls it",
        condition: Always,
        calls: OLD_NAMES,
    },
    Group {
        reason: "waiting for many descriptors at once",
        condition: Always,
        calls: calls![
            SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_pipe2 SYS_ppoll
        ],
    },
    Group {
        reason: "the same, as a C library on this architecture still calls it",
        condition: Always,
        calls: OLD_WAITS,
    },
    Group {
        reason: "local sockets: kube-apiserver, the admin socket, systemd, the runtime's own wake-ups",
        condition: Local,
        calls: calls![SYS_socket SYS_socketpair],
    },
    Group {
        reason: "what is done with a socket, of whichever family it is: other families can't be made",
        condition: Always,
        calls: calls![
            SYS_accept4 SYS_bind SYS_connect SYS_getpeername SYS_getsockname SYS_getsockopt SYS_listen SYS_recvfrom
            SYS_recvmsg SYS_sendmsg SYS_sendto SYS_setsockopt SYS_shutdown
        ],
    },
    Group {
        reason: "memory: the allocator, stacks of threads, pages of keys that are locked and kept from dumps",
        condition: Always,
        calls: calls![SYS_brk SYS_madvise SYS_memfd_secret SYS_mlock SYS_mlock2 SYS_mremap SYS_munlock SYS_munmap],
    },
    Group {
        reason: "memory with a protection: never code, since all code is loaded before",
        condition: Data,
        calls: calls![SYS_mmap SYS_mprotect],
    },
    Group {
        reason: "the runtime's threads; clone3 is left out, because its flags can't be seen: libraries then use clone",
        condition: Thread,
        calls: calls![SYS_clone],
    },
    Group {
        reason: "life and death of threads, and turns between them",
        condition: Always,
        calls: calls![
            SYS_exit SYS_exit_group SYS_futex SYS_getpid SYS_gettid SYS_membarrier SYS_restart_syscall SYS_rseq
            SYS_sched_getaffinity SYS_sched_yield SYS_set_robust_list SYS_set_tid_address
        ],
    },
    Group {
        reason: "names of threads and of memory, for people who look",
        condition: Prctls,
        calls: calls![SYS_prctl],
    },
    Group {
        reason: "signals to this process: SIGTERM and SIGHUP arrive, an abort ends it",
        condition: Always,
        calls: calls![SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack SYS_tgkill],
    },
    Group {
        reason: "time, where the kernel does not tell it without a call",
        condition: Always,
        calls: calls![SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_gettimeofday SYS_nanosleep],
    },
    Group {
        reason: "who one is, what one used, random bytes; a library that can't ask its own id panics",
        condition: Always,
        calls: calls![
            SYS_getegid SYS_geteuid SYS_getgid SYS_getppid SYS_getrandom SYS_getrusage SYS_getuid SYS_sysinfo
            SYS_umask SYS_uname
        ],
    },
    Group { reason: "limits, as of open descriptors", condition: Own, calls: calls![SYS_prlimit64] },
    Group { reason: "descriptors' modes, by ioctl", condition: Ioctls, calls: calls![SYS_ioctl] },
];

/// What a daemon does beside that whose key service is on a network.
pub const ALLOWED_ON_NETWORK: &[Group] = &[
    Group {
        reason: "sockets to key services, and to what looks their names up; to which ports is for Landlock to say",
        condition: Remote,
        calls: calls![SYS_socket],
    },
    Group {
        reason: "how a C library asks for addresses of both families at once",
        condition: Always,
        calls: calls![SYS_recvmmsg SYS_sendmmsg],
    },
];

/// What stays fatal there of sockets.
const FATAL_ON_NETWORK: &[Group] = &[Group {
    reason: "reading and writing what passes on a network",
    condition: Packets,
    calls: calls![SYS_socket],
}];

#[cfg(target_arch = "x86_64")]
const OLD_NAMES: &[(&str, c_long)] = calls![
    SYS_access SYS_chmod SYS_chown SYS_link SYS_lstat SYS_mkdir SYS_open SYS_readlink SYS_rename SYS_rmdir SYS_stat
    SYS_unlink
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_NAMES: &[(&str, c_long)] = &[];

#[cfg(target_arch = "x86_64")]
const OLD_WAITS: &[(&str, c_long)] = calls![SYS_epoll_wait SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const OLD_WAITS: &[(&str, c_long)] = &[];

/// What only someone who has broken in tries.
pub const FATAL: &[Group] = &[
    Group { reason: "becoming another program", condition: Always, calls: calls![SYS_execve SYS_execveat] },
    Group {
        reason: "speaking to a network: nothing that is linked in does, and a service on one gets its own process",
        condition: Internet,
        calls: calls![SYS_socket],
    },
    Group {
        reason: "looking into other processes, or taking what they have open",
        condition: Always,
        calls: calls![
            SYS_kcmp SYS_pidfd_getfd SYS_process_madvise SYS_process_vm_readv SYS_process_vm_writev SYS_ptrace
        ],
    },
    Group {
        reason: "ways around checks of system calls and file names, and classic ways into the kernel",
        condition: Always,
        calls: calls![
            SYS_bpf SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup SYS_open_by_handle_at
            SYS_perf_event_open SYS_userfaultfd
        ],
    },
    Group {
        reason: "another kernel, or other code in it",
        condition: Always,
        calls: calls![
            SYS_delete_module SYS_finit_module SYS_init_module SYS_kexec_file_load SYS_kexec_load SYS_reboot
        ],
    },
    Group {
        reason: "another view of the file system, or out of a container's",
        condition: Always,
        calls: calls![
            SYS_chroot SYS_fsconfig SYS_fsmount SYS_fsopen SYS_mount SYS_mount_setattr SYS_move_mount SYS_open_tree
            SYS_pivot_root SYS_setns SYS_umount2 SYS_unshare
        ],
    },
    Group {
        reason: "another user, or more rights",
        condition: Always,
        calls: calls![
            SYS_capset SYS_setfsgid SYS_setfsuid SYS_setgid SYS_setgroups SYS_setregid SYS_setresgid SYS_setresuid
            SYS_setreuid SYS_setuid
        ],
    },
    Group {
        reason: "the kernel's key rings, which others share",
        condition: Always,
        calls: calls![SYS_add_key SYS_keyctl SYS_request_key],
    },
];

/// The filters can't be made or installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallsError {
    /// There is no list for this kind of processor.
    #[error("there is no list of system calls for processors of kind {0}")]
    Processor(&'static str),
    /// A filter can't be made.
    #[error("a filter can't be made: {0}")]
    Made(#[from] BackendError),
    /// The kernel refuses a filter.
    #[error("the kernel refuses a filter: {0}; it must be built with CONFIG_SECCOMP_FILTER")]
    Refused(#[from] seccompiler::Error),
}

/// Only [`ALLOWED`] from now on; on a network, [`ALLOWED_ON_NETWORK`] too.
pub(super) fn confine(on_network: bool) -> Result<(), CallsError> {
    let (allowed, fatal): (Vec<Group>, Vec<Group>) = if on_network {
        let fatal = FATAL.iter().filter(|group| group.condition != Internet).chain(FATAL_ON_NETWORK);
        (ALLOWED.iter().chain(ALLOWED_ON_NETWORK).copied().collect(), fatal.copied().collect())
    } else {
        (ALLOWED.into(), FATAL.into())
    };
    // Every filter is asked, the most severe answer counts, and of two errors the newer filter's. The one that refuses
    // to install more is the last.
    let fatal = filter(&fatal, SeccompAction::Allow, SeccompAction::KillProcess)?;
    let absent = filter(&allowed, SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow)?;
    apply_filter(&fatal)?;
    apply_filter(&absent)?;
    Ok(())
}

/// None of [`FATAL`] from now on, but it fails and does not end the process: for code that is not ours.
pub(super) fn deny(networks: bool, programs: bool) -> Result<(), CallsError> {
    let denied = |group: &&Group| match group.condition {
        Internet => networks,
        _ => programs || !group.calls.iter().any(|(_, number)| *number == libc::SYS_execve),
    };
    let groups: Vec<Group> = FATAL.iter().filter(denied).copied().collect();
    apply_filter(&filter(&groups, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))?)?;
    Ok(())
}

fn filter(
    groups: &[Group],
    otherwise: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, CallsError> {
    const HERE: &str = std::env::consts::ARCH;
    let processor = TargetArch::try_from(HERE).map_err(|_| CallsError::Processor(HERE))?;
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = BTreeMap::new();
    for group in groups {
        let rule = group.condition.rules()?;
        for (_, number) in group.calls {
            // A call of two groups is one of either: only sockets are, and none of theirs is unconditional.
            rules.entry(*number).or_default().extend(rule.iter().cloned());
        }
    }
    Ok(SeccompFilter::new(rules, otherwise, listed, processor)?.try_into()?)
}

impl Condition {
    /// One of them must hold; none: always.
    fn rules(self) -> Result<Vec<SeccompRule>, BackendError> {
        use SeccompCmpArgLen::{Dword, Qword};
        use SeccompCmpOp::{Eq, MaskedEq};

        let bits = |mask: i32| MaskedEq(u64::from(mask.unsigned_abs()));
        let accepted: Vec<(u8, SeccompCmpArgLen, SeccompCmpOp, u64)> = match self {
            Always => vec![],
            Data => vec![(2, Dword, bits(libc::PROT_EXEC), 0)],
            Ioctls => {
                [libc::FIOCLEX, libc::FIONBIO, libc::TCGETS].map(|request| (1, Dword, Eq, request)).into()
            }
            Internet => [libc::AF_INET, libc::AF_INET6, libc::AF_PACKET]
                .map(|family| (0, Dword, Eq, u64::from(family.unsigned_abs())))
                .into(),
            Packets => vec![(0, Dword, Eq, u64::from(libc::AF_PACKET.unsigned_abs()))],
            Remote => [libc::AF_INET, libc::AF_INET6]
                .map(|family| (0, Dword, Eq, u64::from(family.unsigned_abs())))
                .into(),
            Local => vec![(0, Dword, Eq, u64::from(libc::AF_UNIX.unsigned_abs()))],
            Own => vec![(0, Dword, Eq, 0)],
            Prctls => [libc::PR_SET_NAME, libc::PR_SET_VMA]
                .map(|option| (0, Dword, Eq, u64::from(option.unsigned_abs())))
                .into(),
            Thread => {
                let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
                vec![(0, Qword, MaskedEq(thread), thread)]
            }
        };
        accepted
            .into_iter()
            .map(|(argument, length, compare, value)| {
                SeccompRule::new(vec![SeccompCondition::new(argument, length, compare, value)?])
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn numbers(groups: &[Group]) -> Vec<c_long> {
        groups.iter().flat_map(|group| group.calls).map(|(_, number)| *number).collect()
    }

    #[test]
    fn each_call_stands_once_in_one_list_but_sockets() {
        let (allowed, fatal) = (numbers(ALLOWED), numbers(FATAL));
        let both: Vec<_> = fatal.iter().filter(|number| allowed.contains(number)).collect();
        assert_eq!(both, [&libc::SYS_socket], "a local one is allowed, an internet one ends the process");
        let all: BTreeSet<_> = allowed.iter().chain(&fatal).collect();
        assert_eq!(all.len(), allowed.len() + fatal.len() - 1);
    }

    #[test]
    fn each_group_says_why_and_only_sockets_are_fatal_under_a_condition() {
        assert!(ALLOWED.iter().chain(FATAL).all(|group| group.reason.len() > 10));
        let conditions: Vec<_> =
            FATAL.iter().filter(|group| group.condition != Always).map(|group| group.condition).collect();
        assert_eq!(conditions, [Internet]);
    }

    #[test]
    fn what_a_process_could_break_out_by_is_in_no_group() {
        let allowed = numbers(ALLOWED);
        for (name, number) in calls![
            SYS_clone3 SYS_kill SYS_memfd_create SYS_personality SYS_pkey_mprotect SYS_mknodat SYS_symlinkat
            SYS_seccomp SYS_shmget SYS_tkill
        ] as &[(&str, c_long)]
        {
            assert!(!allowed.contains(number), "{name}");
        }
    }
}
