//! The program `casemate`; everything is in the library.
use std::alloc::System;
use std::process::ExitCode;

use zeroizing_alloc::ZeroAlloc;

/// Memory is wiped when it is freed: keys and identities pass through many hands.
#[global_allocator]
static WIPED: ZeroAlloc<System> = ZeroAlloc(System);

fn main() -> ExitCode {
    casemate::main(option_env!("CASEMATE_COMMIT"))
}
