//! What the kernel would answer is computed from the filters themselves: some answers would end the test.

use std::collections::BTreeSet;

use seccompiler::sock_filter;

use super::*;

/// What a filter says of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    /// With this number.
    Fails(i32),
    Ends,
}

/// Runs `program` as the kernel does, as far as programs of this kind go.
fn run(program: &[sock_filter], number: c_long, arguments: [u64; 6]) -> Verdict {
    const ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

    // `struct seccomp_data`: number, architecture, instruction, arguments; little-endian words.
    let mut words = vec![u32::try_from(number).unwrap(), ARCHITECTURE, 0, 0];
    words.extend(arguments.iter().flat_map(|argument| [*argument as u32, (*argument >> 32) as u32]));
    let (mut at, mut held) = (0, 0_u32);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        let jump = |so: bool| usize::from(if so { jt } else { jf });
        at += 1;
        match code {
            0x05 => at += k as usize,
            0x06 => {
                return match (k & 0xffff_0000, (k & 0xffff).cast_signed()) {
                    (0x7fff_0000, _) => Verdict::Allowed,
                    (0x0005_0000, errno) => Verdict::Fails(errno),
                    (0x8000_0000, _) => Verdict::Ends,
                    other => panic!("{other:x?}"),
                };
            }
            0x15 => at += jump(held == k),
            0x20 => held = words[k as usize / 4],
            0x25 => at += jump(held > k),
            0x35 => at += jump(held >= k),
            0x54 => held &= k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

/// The most severe verdict counts.
fn daemon(networks: Networks, number: c_long, arguments: [i32; 6]) -> Verdict {
    let arguments = arguments.map(|argument| u64::from(argument.cast_unsigned()));
    let verdicts = filters(networks).unwrap().map(|filter| run(&filter, number, arguments));
    let of = |wanted: fn(&Verdict) -> bool| verdicts.into_iter().find(wanted);
    of(|one| *one == Verdict::Ends).or(of(|one| *one != Verdict::Allowed)).unwrap_or(Verdict::Allowed)
}

const ABSENT: Verdict = Verdict::Fails(libc::ENOSYS);

/// How each profile answers `socket`: without a network, with one, and with names to look up.
#[test]
fn on_a_network_there_is_tcp_and_udp_only_for_names() {
    use Verdict::{Allowed, Ends};

    let how = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (stream, datagram) = (libc::SOCK_STREAM, libc::SOCK_DGRAM);
    let mut table = vec![
        ([libc::AF_UNIX, stream | how, 0], [Allowed; 3]),
        ([libc::AF_PACKET, libc::SOCK_RAW, 0], [Ends; 3]),
        ([libc::AF_NETLINK, libc::SOCK_RAW, 0], [ABSENT; 3]),
        ([libc::AF_VSOCK, stream, 0], [ABSENT; 3]),
        ([libc::AF_ALG, libc::SOCK_SEQPACKET, 0], [ABSENT; 3]),
        // AF_SMC: TCP by another name.
        ([43, stream, 0], [ABSENT; 3]),
    ];
    for family in [libc::AF_INET, libc::AF_INET6] {
        let of = |kind, protocol| [family, kind, protocol];
        table.extend([
            (of(stream, 0), [Ends, Allowed, Allowed]),
            (of(stream | how, libc::IPPROTO_TCP), [Ends, Allowed, Allowed]),
            (of(stream, libc::IPPROTO_MPTCP), [Ends, ABSENT, ABSENT]),
            (of(stream, libc::IPPROTO_SCTP), [Ends, ABSENT, ABSENT]),
            (of(datagram | how, 0), [Ends, ABSENT, Allowed]),
            (of(datagram, libc::IPPROTO_UDP), [Ends, ABSENT, Allowed]),
            (of(datagram, libc::IPPROTO_ICMP), [Ends, ABSENT, ABSENT]),
            (of(datagram, libc::IPPROTO_UDPLITE), [Ends, ABSENT, ABSENT]),
            (of(libc::SOCK_RAW, libc::IPPROTO_TCP), [Ends, ABSENT, ABSENT]),
            (of(libc::SOCK_SEQPACKET, 0), [Ends, ABSENT, ABSENT]),
        ]);
    }
    for ([family, kind, protocol], expected) in table {
        let said = [Networks::None, Networks::Tcp, Networks::TcpAndNames]
            .map(|networks| daemon(networks, libc::SYS_socket, [family, kind, protocol, 0, 0, 0]));
        assert_eq!(said, expected, "socket({family}, {kind:#x}, {protocol})");
    }
}

#[test]
fn nothing_connects_by_sending() {
    let (fast, other) = (libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    for networks in [Networks::None, Networks::Tcp, Networks::TcpAndNames] {
        let said = |number, arguments| daemon(networks, number, arguments);
        for (number, at) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
            let with = |flags: i32| std::array::from_fn(|argument| if argument == at { flags } else { 7 });
            assert_eq!(said(number, with(fast)), Verdict::Ends, "{number} {networks:?}");
            let usual = match number {
                libc::SYS_sendmmsg if networks != Networks::TcpAndNames => ABSENT,
                _ => Verdict::Allowed,
            };
            assert_eq!(said(number, with(other)), usual, "{number} {networks:?}");
        }
        let option = |level, name| said(libc::SYS_setsockopt, [3, level, name, 0, 4, 0]);
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT), Verdict::Ends);
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_NODELAY), Verdict::Allowed);
        assert_eq!(option(libc::SOL_SOCKET, libc::TCP_FASTOPEN_CONNECT), Verdict::Allowed);
    }
}

#[test]
fn foreign_code_has_local_sockets_and_those_of_hosts_if_it_may() {
    const DENIED: Verdict = Verdict::Fails(libc::EPERM);
    use Verdict::Allowed;

    for (family, expected) in [
        (libc::AF_UNIX, [Allowed, Allowed]),
        (libc::AF_INET, [DENIED, Allowed]),
        (libc::AF_INET6, [DENIED, Allowed]),
        (libc::AF_NETLINK, [DENIED; 2]),
        (libc::AF_PACKET, [DENIED; 2]),
        (libc::AF_ALG, [DENIED; 2]),
        (libc::AF_VSOCK, [DENIED; 2]),
        (libc::AF_XDP, [DENIED; 2]),
        // AF_TIPC, the one that has pairs too.
        (30, [DENIED; 2]),
    ] {
        for number in [libc::SYS_socket, libc::SYS_socketpair] {
            let arguments = [u64::from(family.unsigned_abs()), 1, 0, 0, 0, 0];
            let said =
                [false, true].map(|networks| run(&denying(networks, false).unwrap(), number, arguments));
            assert_eq!(said, expected, "{number} of family {family}");
        }
    }
    let execute = |programs| run(&denying(true, programs).unwrap(), libc::SYS_execve, [0; 6]);
    assert_eq!((execute(false), execute(true)), (DENIED, Allowed));
}

fn numbers(groups: &[Group]) -> Vec<c_long> {
    groups.iter().flat_map(|group| group.calls).map(|(_, number)| *number).collect()
}

/// A call that stands in two groups of one list is one of either only if both have a condition.
#[test]
fn what_stands_twice_stands_there_under_a_condition() {
    let (allowed, fatal) = (numbers(ALLOWED), numbers(FATAL));
    for list in [&allowed, &fatal] {
        assert_eq!(list.iter().collect::<BTreeSet<_>>().len(), list.len(), "once in a list");
    }
    let conditional = FATAL.iter().filter(|group| group.condition != Always).flat_map(|group| group.calls);
    let conditional: BTreeSet<_> = conditional.map(|(_, number)| number).collect();
    let both: BTreeSet<_> = fatal.iter().filter(|number| allowed.contains(number)).collect();
    assert!(both.is_subset(&conditional), "{both:?}");

    let more = [ALLOWED_ON_NETWORK, ALLOWED_FOR_NAMES].concat();
    for group in ALLOWED.iter().filter(|group| group.condition == Always) {
        let again = group.calls.iter().find(|(_, number)| numbers(&more).contains(number));
        assert_eq!(again, None, "it would be allowed under a condition alone");
    }
}

#[test]
fn each_group_says_why() {
    let all =
        [ALLOWED, ALLOWED_ON_NETWORK, ALLOWED_FOR_NAMES, FATAL, FATAL_ON_NETWORK, DENIED, DENIED_ON_NETWORK];
    assert!(all.concat().iter().all(|group| group.reason.len() > 10));
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
