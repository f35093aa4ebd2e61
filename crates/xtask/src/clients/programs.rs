//! The programs that hold the conversation, and their builds.

use super::process::{ProcessResult, output_of};
use super::{BUILD_TIMEOUT, Directories, TIMEOUT, find_program};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The steps of the conversation, which `bench/clients/README.md` explains.
pub(crate) const STEPS: [&str; 17] = [
    "put",
    "get",
    "head",
    "get_unchanged",
    "put_conditional",
    "part",
    "delete",
    "missing",
    "ttl",
    "large",
    "long_key",
    "expect",
    "batch",
    "range_lines",
    "range_ndjson",
    "options",
    "keep_alive",
];

/// A client: its name, and the build of its program.
struct Recipe {
    name: &'static str,
    /// Whether one process holds the whole conversation, instead of one process per request.
    is_one_process: bool,
    prepare: fn(&Directories) -> ProcessResult<Vec<OsString>>,
}

const RECIPES: [Recipe; 10] = [
    Recipe {
        name: "curl",
        is_one_process: false,
        prepare: |directories| script(directories, "curl", "curl.sh"),
    },
    Recipe {
        name: "wget",
        is_one_process: false,
        prepare: |directories| script(directories, "wget", "wget.sh"),
    },
    Recipe {
        name: "httpie",
        is_one_process: false,
        prepare: |directories| script(directories, "http", "httpie.sh"),
    },
    Recipe {
        name: "requests",
        is_one_process: true,
        prepare: |directories| python(directories, "python_requests.py"),
    },
    Recipe {
        name: "httpx",
        is_one_process: true,
        prepare: |directories| python(directories, "python_httpx.py"),
    },
    Recipe {
        name: "aiohttp",
        is_one_process: true,
        prepare: |directories| python(directories, "python_aiohttp.py"),
    },
    Recipe { name: "go", is_one_process: true, prepare: go },
    Recipe { name: "java", is_one_process: true, prepare: java },
    Recipe { name: "node", is_one_process: true, prepare: node },
    Recipe { name: "reqwest", is_one_process: true, prepare: reqwest },
];

/// The names of all clients.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|recipe| recipe.name)
}

/// A program that is ready to run.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) is_one_process: bool,
    /// The program and its first arguments.
    words: Vec<OsString>,
}

impl Program {
    /// Builds the program of the client `name`.
    ///
    /// # Errors
    /// A message that names the missing component.
    pub(crate) fn prepare(name: &str, directories: &Directories) -> ProcessResult<Self> {
        let recipe = RECIPES.iter().find(|recipe| recipe.name == name).expect("it is one of the names");
        let words = (recipe.prepare)(directories)?;
        Ok(Self { name: recipe.name, is_one_process: recipe.is_one_process, words })
    }

    /// The command, without the URL and the prefix.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        // The node is on this machine, so proxies in the environment do not apply.
        for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(name);
        }
        command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
        command
    }
}

fn words<const N: usize>(words: [&Path; N]) -> Vec<OsString> {
    words.into_iter().map(|word| word.as_os_str().to_owned()).collect()
}

fn script(directories: &Directories, needs: &str, file: &str) -> ProcessResult<Vec<OsString>> {
    find_program(needs)?;
    Ok(words([Path::new("bash"), &directories.sources.join(file)]))
}

/// A Python program, in a virtual environment with the packages of `requirements.txt`.
fn python(directories: &Directories, file: &str) -> ProcessResult<Vec<OsString>> {
    let environment = directories.built.join("python");
    let python = environment.join("bin/python");
    let requirements = directories.sources.join("requirements.txt");
    let installed = environment.join("installed.txt");
    let wanted =
        std::fs::read(&requirements).map_err(|error| format!("{}: {error}", requirements.display()))?;
    if std::fs::read(&installed).ok().as_ref() != Some(&wanted) {
        output_of(Command::new("python3").args(["-m", "venv"]).arg(&environment), TIMEOUT)?;
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&requirements);
        output_of(&mut pip, BUILD_TIMEOUT)?;
        std::fs::write(&installed, wanted).map_err(|error| format!("{}: {error}", installed.display()))?;
    }
    Ok(words([&python, &directories.sources.join(file)]))
}

fn go(directories: &Directories) -> ProcessResult<Vec<OsString>> {
    let binary = directories.built.join("go-client");
    let mut build = Command::new(find_program("go")?);
    build.args(["build", "-o"]).arg(&binary).arg(".").current_dir(directories.sources.join("go"));
    output_of(&mut build, BUILD_TIMEOUT)?;
    Ok(words([&binary]))
}

fn java(directories: &Directories) -> ProcessResult<Vec<OsString>> {
    let classes = directories.built.join("java");
    let mut build = Command::new(find_program("javac")?);
    build.arg("-d").arg(&classes).arg(directories.sources.join("java/Conversation.java"));
    output_of(&mut build, BUILD_TIMEOUT)?;
    Ok(words([&find_program("java")?, Path::new("-cp"), &classes, Path::new("Conversation")]))
}

fn node(directories: &Directories) -> ProcessResult<Vec<OsString>> {
    Ok(words([&find_program("node")?, &directories.sources.join("node_fetch.mjs")]))
}

fn reqwest(directories: &Directories) -> ProcessResult<Vec<OsString>> {
    let target: PathBuf = directories.built.join("reqwest");
    let mut build = Command::new("cargo");
    build.args(["build", "--locked", "--manifest-path"]).arg(directories.sources.join("reqwest/Cargo.toml"));
    build.arg("--target-dir").arg(&target);
    output_of(&mut build, BUILD_TIMEOUT)?;
    Ok(words([&target.join("debug/veche-client-reqwest")]))
}
