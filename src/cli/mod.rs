//! Commands, their options and their exit codes.

mod bench;
mod compile;
mod generate;
mod list;
mod resources;
mod run;
mod train;
mod values;

use clap::{Parser, Subcommand};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

/// Fused vocabulary layers of language models: generates the kernels and runs them with the vocabulary split over ranks.
#[derive(Debug, Parser)]
#[command(name = "vocabfuse", version, disable_help_subcommand = true, arg_required_else_help = false)]
#[command(after_help = "Exit codes: 0 success, 1 a failed check, 2 unusable input, 3 a device that failed at work.\n\
    RUST_LOG=info (or debug) shows more on stderr; VOCABFUSE_ISA=scalar|avx2|avx512|avx512bf16|amx forces an instruction set,\n\
    VOCABFUSE_ISA_LIMIT hides what is beyond one.\n\
    Try: vocabfuse train --text README.md --steps 100")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Train(train::Args),
    Generate(generate::Args),
    List(list::Args),
    Bench(bench::Args),
    Compile(compile::Args),
}

/// How a command that could use its input ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Success,
    FailedCheck,
}

/// Parses the arguments and runs the command.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // Help or version; a closed pipe is no reason to fail.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            print_error(&one_line(&error.render().to_string()));
            return ExitCode::from(2);
        }
    };
    start_log();
    let result = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::List(args) => list::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Compile(args) => compile::run(&args),
    };
    match result {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::FailedCheck) => ExitCode::from(1),
        Err(error) => {
            print_error(&one_line(&format!("error: {}", causes(&error))));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// 3 where a device that could be opened failed, else 2.
fn exit_code(error: &anyhow::Error) -> u8 {
    let failed =
        |cause: &(dyn std::error::Error + 'static)| matches!(cause.downcast_ref(), Some(vocabfuse::Error::Device(_)));
    if error.chain().any(failed) { 3 } else { 2 }
}

fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .init();
}

/// The messages of an error and its causes, less those that a message before has quoted.
fn causes(error: &anyhow::Error) -> String {
    let mut all = String::new();
    for cause in error.chain().map(|c| c.to_string()) {
        if !all.contains(&cause) {
            let separator = if all.is_empty() { "" } else { ": " };
            all += &format!("{separator}{cause}");
        }
    }
    all
}

/// The message without the usage that follows it, as one line.
fn one_line(message: &str) -> String {
    let usage = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more information");
    let lines = message.lines().take_while(usage).map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// Prints the one JSON object of a command.
fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print_line(&serde_json::to_string(value)?)
}

/// Prints to stderr. Where nobody can read it the exit code still tells.
fn print_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints to stdout. A reader that has seen enough and gone, such as `head`, is no error.
fn print_line(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_device_that_fails_has_an_exit_code_of_its_own() {
        let fault = anyhow::Error::from(vocabfuse::Error::Device("cuda:0: an illegal memory access".to_owned()));
        assert_eq!(exit_code(&fault), 3);
        assert_eq!(exit_code(&fault.context("pass S")), 3);
        assert_eq!(exit_code(&vocabfuse::Error::Missing("no driver".to_owned()).into()), 2);
        assert_eq!(exit_code(&anyhow::anyhow!("option --device: expected cpu")), 2);
    }

    #[test]
    fn errors_are_one_line() {
        for arguments in [&["vocabfuse"][..], &["vocabfuse", "run"], &["vocabfuse", "list", "--target", "mmx"]] {
            let message = Cli::try_parse_from(arguments).unwrap_err().render().to_string();
            let line = one_line(&message);
            assert!(line.starts_with("error: ") && !line.contains('\n') && !line.contains("Usage"), "{line}");
        }
    }
}
