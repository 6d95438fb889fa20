//! `casemate-lab`: the lab by hand. `casemate-lab help` says what it can.

use std::{env, fs, io, process::ExitCode};

use anyhow::{Context as _, bail};
use casemate_lab::{Encryption, Lab, Tool, cache_dir, demo, python};

const USAGE: &str = "\
casemate-lab: real Kubernetes parts on this machine

  casemate-lab up [--apiservers N] [--encryption-config FILE]
      Starts etcd and N (1) kube-apiservers, prints how to reach them, and runs until its standard
      input ends, or Ctrl-C. All of it ends with it, however it ends.
  casemate-lab demo [--once]
      Tells the main job on them: encrypt, prove, rotate, migrate, prove. Stays up then, unless --once.
  casemate-lab tools
      Prints the path of each program that the lab starts, after building what is missing.
  casemate-lab python
      Prints the path of a Python that has what the lab's programs import.
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["up", options @ ..] => up(options),
        ["demo"] => demo::run(false),
        ["demo", "--once"] => demo::run(true),
        ["tools"] => tools(),
        ["python"] => python().map(|path| println!("{}", path.display())).map_err(Into::into),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("casemate-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn tools() -> anyhow::Result<()> {
    for tool in Tool::LAB {
        println!("{tool}\t{}", tool.path()?.display());
    }
    println!("cache\t{}", cache_dir()?.display());
    Ok(())
}

fn up(options: &[&str]) -> anyhow::Result<()> {
    let mut builder = Lab::builder("up");
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        let value =
            rest.next().with_context(|| format!("{option} needs a value; see `casemate-lab help`"))?;
        builder = match *option {
            "--apiservers" => builder.apiservers(
                value.parse().with_context(|| format!("--apiservers {value}: a number is needed"))?,
            ),
            "--encryption-config" => builder.encryption(Encryption::Verbatim(
                fs::read_to_string(value).with_context(|| format!("can't read {value}"))?,
            )),
            _ => bail!("there is no option {option}; see `casemate-lab help`"),
        };
    }
    let lab = builder.start()?;
    println!("folder\t{}", lab.dir().display());
    println!("etcd\t{}", lab.etcd().endpoint());
    for server in lab.apiservers() {
        println!("{}\t{}", server.name(), server.url());
        println!("\texport KUBECONFIG={}", server.kubeconfig().display());
    }
    println!("kubectl\t{}", Tool::Kubectl.path()?.display());
    eprintln!("casemate-lab: running until standard input ends (Ctrl-D), or Ctrl-C");
    // No signal handler: the kernel ends the servers of a process that is killed.
    io::copy(&mut io::stdin(), &mut io::sink()).context("can't wait for standard input")?;
    Ok(())
}
