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

use self::Condition::{
    Always, Data, Datagram, FastOpen, FastOpenOption, Foreign, ForeignOnNetwork, Internet, Ioctls, Local,
    Own, Packets, Prctls, Stream, Thread,
};

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
    /// A UDP socket of family `AF_INET` or `AF_INET6`.
    Datagram,
    /// Flags, in the argument of this number from 0, with `MSG_FASTOPEN`: it connects without `connect`.
    FastOpen(u8),
    /// The socket option that puts a connection off until something is sent, `TCP_FASTOPEN_CONNECT`.
    FastOpenOption,
    /// A socket of another family than `AF_UNIX`.
    Foreign,
    /// A socket of another family than `AF_UNIX`, `AF_INET` and `AF_INET6`.
    ForeignOnNetwork,
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
    /// A TCP socket of family `AF_INET` or `AF_INET6`, and none of another protocol that carries a stream (MPTCP, SCTP):
    /// Landlock knows TCP alone.
    Stream,
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

/// What of networks a daemon uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Networks {
    /// Nothing.
    None,
    /// TCP to hosts that are known by number.
    Tcp,
    /// TCP to hosts that are known by name, and whom to ask for it.
    TcpAndNames,
}

/// What a daemon does beside that whose key service is on a network.
pub const ALLOWED_ON_NETWORK: &[Group] = &[Group {
    reason: "sockets to key services; to which ports is for Landlock to say",
    condition: Stream,
    calls: calls![SYS_socket],
}];

/// What it does beside that if a key service is known by name.
pub const ALLOWED_FOR_NAMES: &[Group] = &[
    Group {
        reason: "what looks names up, and compares addresses; Landlock has no say in UDP",
        condition: Datagram,
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
        reason: "connecting by sending, which Landlock's check of `connect` does not see",
        condition: FastOpen(2),
        calls: calls![SYS_sendmsg],
    },
    Group {
        reason: "the same, of calls with one argument more",
        condition: FastOpen(3),
        calls: calls![SYS_sendmmsg SYS_sendto],
    },
    Group {
        reason: "the same, by an option of the socket",
        condition: FastOpenOption,
        calls: calls![SYS_setsockopt],
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

/// Sockets of code that is not ours, unless it may speak to networks.
const DENIED: &[Group] = &[Group {
    reason: "networks, and families of sockets that reach the kernel or a hypervisor and that no module needs",
    condition: Foreign,
    calls: calls![SYS_socket SYS_socketpair],
}];

/// The same, if it may.
const DENIED_ON_NETWORK: &[Group] = &[Group {
    reason: "families of sockets that reach the kernel, a hypervisor or the wire itself, and that no module needs",
    condition: ForeignOnNetwork,
    calls: calls![SYS_socket SYS_socketpair],
}];

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

/// Only [`ALLOWED`] from now on, and what `networks` need beside it.
pub(super) fn confine(networks: Networks) -> Result<(), CallsError> {
    filters(networks)?.iter().try_for_each(|filter| Ok(apply_filter(filter)?))
}

/// In the order in which they are applied. Every filter is asked, the most severe answer counts, and of two errors the
/// newer filter's. The one that refuses to install more is the last.
fn filters(networks: Networks) -> Result<[BpfProgram; 2], CallsError> {
    let mut allowed = ALLOWED.to_vec();
    let mut fatal = FATAL.to_vec();
    if networks != Networks::None {
        allowed.extend(ALLOWED_ON_NETWORK);
        fatal.retain(|group| group.condition != Internet);
        fatal.extend(FATAL_ON_NETWORK);
    }
    if networks == Networks::TcpAndNames {
        allowed.extend(ALLOWED_FOR_NAMES);
    }
    Ok([
        filter(&fatal, SeccompAction::Allow, SeccompAction::KillProcess)?,
        filter(&allowed, SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow)?,
    ])
}

/// None of [`FATAL`] from now on, and no sockets but local ones and those of `networks`; it fails and does not end the
/// process: for code that is not ours. Fast connections are its own business: no port is closed to it on a network.
pub(super) fn deny(networks: bool, programs: bool) -> Result<(), CallsError> {
    Ok(apply_filter(&denying(networks, programs)?)?)
}

fn denying(networks: bool, programs: bool) -> Result<BpfProgram, CallsError> {
    let starts = |group: &Group| group.calls.iter().any(|(_, number)| *number == libc::SYS_execve);
    let denied = |group: &&Group| group.condition == Always && !(programs && starts(group));
    let sockets = if networks { DENIED_ON_NETWORK } else { DENIED };
    let groups: Vec<Group> = FATAL.iter().filter(denied).chain(sockets).copied().collect();
    filter(&groups, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
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
        use SeccompCmpOp::{Eq, MaskedEq, Ne};

        type Test = (u8, SeccompCmpArgLen, SeccompCmpOp, u64);

        const FAMILY: u8 = 0;
        const HOSTS: [i32; 2] = [libc::AF_INET, libc::AF_INET6];
        let number = |value: i32| u64::from(value.unsigned_abs());
        let bits = |mask: i32| MaskedEq(number(mask));
        let one = |argument, value: i32| -> Test { (argument, Dword, Eq, number(value)) };
        let other = |argument, value: i32| -> Test { (argument, Dword, Ne, number(value)) };
        let has = |argument, flag: i32| -> Test { (argument, Dword, bits(flag), number(flag)) };
        // How a socket is opened stands in the same argument as its kind.
        let kind = !(number(libc::SOCK_CLOEXEC) | number(libc::SOCK_NONBLOCK)) & u64::from(u32::MAX);
        let of_hosts = |of_kind: i32, protocol: i32| {
            let tests = HOSTS.map(|family| {
                [0, protocol].map(|protocol| {
                    vec![one(FAMILY, family), (1, Dword, MaskedEq(kind), number(of_kind)), one(2, protocol)]
                })
            });
            tests.concat()
        };
        // In a rule, all must hold.
        let accepted: Vec<Vec<Test>> = match self {
            Always => vec![],
            Data => vec![vec![(2, Dword, bits(libc::PROT_EXEC), 0)]],
            Datagram => of_hosts(libc::SOCK_DGRAM, libc::IPPROTO_UDP),
            FastOpen(flags) => vec![vec![has(flags, libc::MSG_FASTOPEN)]],
            FastOpenOption => {
                vec![vec![one(1, libc::IPPROTO_TCP), one(2, libc::TCP_FASTOPEN_CONNECT)]]
            }
            Foreign => vec![vec![other(FAMILY, libc::AF_UNIX)]],
            ForeignOnNetwork => {
                let [four, six] = HOSTS;
                vec![[libc::AF_UNIX, four, six].map(|family| other(FAMILY, family)).into()]
            }
            Ioctls => [libc::FIOCLEX, libc::FIONBIO, libc::TCGETS]
                .map(|request| vec![(1, Dword, Eq, request)])
                .into(),
            Internet => {
                HOSTS.into_iter().chain([libc::AF_PACKET]).map(|one_of| vec![one(FAMILY, one_of)]).collect()
            }
            Local => vec![vec![one(FAMILY, libc::AF_UNIX)]],
            Own => vec![vec![one(0, 0)]],
            Packets => vec![vec![one(FAMILY, libc::AF_PACKET)]],
            Prctls => [libc::PR_SET_NAME, libc::PR_SET_VMA].map(|option| vec![one(0, option)]).into(),
            Stream => of_hosts(libc::SOCK_STREAM, libc::IPPROTO_TCP),
            Thread => {
                let thread = number(libc::CLONE_THREAD);
                vec![vec![(0, Qword, MaskedEq(thread), thread)]]
            }
        };
        let condition = |(argument, length, compare, value): Test| {
            SeccompCondition::new(argument, length, compare, value)
        };
        accepted
            .into_iter()
            .map(|tests| SeccompRule::new(tests.into_iter().map(condition).collect::<Result<_, _>>()?))
            .collect()
    }
}

#[cfg(test)]
mod tests;
