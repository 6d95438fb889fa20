//! The program `casemate`; everything is in the library.
use std::process::ExitCode;

fn main() -> ExitCode {
    casemate::main(option_env!("CASEMATE_COMMIT"))
}
