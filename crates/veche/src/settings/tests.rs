//! Resolution of settings, and refusals of invalid ones.

use super::*;
use store::Membership;

const MACHINE: MachineProperties = MachineProperties { memory_bytes: 4 << 30, cores: 3, files_max: 1_000 };

fn settings(text: &str) -> Settings {
    Settings::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    settings(text).resolve(&MACHINE).expect_err(text)
}

#[test]
fn nothing_set_is_a_node_on_its_own_with_a_quarter_of_the_memory() {
    let config = Settings::default().resolve(&MACHINE).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.data, Path::new("./veche-data"));
    assert_eq!(config.membership, Membership::of(Vec::new()));
    let memory = |config: &Config| config.engine.memory_bytes + config.limits.memory_bytes;
    assert_eq!((memory(&config), config.limits.memory_bytes), (1 << 30, 256 << 20));
    assert_eq!((config.threads, config.value_bytes_max), (3, 16 << 20));
    assert_eq!(config.limits.connections_max, 377);
    let large = MachineProperties { memory_bytes: 64 << 30, ..MACHINE };
    let config = Settings::default().resolve(&large).unwrap();
    assert_eq!((memory(&config), config.limits.memory_bytes), (2 << 30, 384 << 20));
}

#[test]
fn every_setting_can_stand_in_the_file() {
    let all = settings(
        "listen = \"127.0.0.1:1\"\ndata = \"/d\"\ncluster = [\"http://127.0.0.1:1/\"]\n\
         self-url = \"HTTP://127.0.0.1:1\"\ndefault-from = 1\nnew-cluster = true\ncluster-secret = \"s\"\n\
         peer-listen = \"127.0.0.1:2\"\nmemory = \"64MiB\"\ndurability = \"os\"\nthreads = 7\n\
         request-timeout = \"2s\"\nvalue-max = 1048576\ndrain-delay = \"3s\"\nsnapshot-age = \"4s\"\nmetrics = \"off\"\n\
         slow-request = \"150ms\"\nscrub-period = \"5h\"\ncompression = \"zstd\"\n\
         log-format = \"json\"\nlog = \"debug\"\n",
    );
    assert_eq!(all.logging(), (LogFormat::Json, "debug"));
    let config = all.resolve(&MACHINE).unwrap();
    assert_eq!(config.membership, Membership::of(vec!["http://127.0.0.1:1".to_owned()]));
    assert_eq!((config.self_name.as_str(), config.default_from), ("http://127.0.0.1:1", 1));
    assert_eq!((config.secret.as_deref(), config.peer_listen), (Some("s"), "127.0.0.1:2".parse().ok()));
    assert!(config.new_cluster && !Settings::default().resolve(&MACHINE).unwrap().new_cluster);
    assert_eq!(config.engine.durability, engine::Durability::Os);
    assert_eq!(config.engine.compression, engine::Compression::Zstd(3));
    assert!(!config.metrics && Settings::default().resolve(&MACHINE).unwrap().metrics);
    assert_eq!((config.threads, config.value_bytes_max), (7, 1 << 20));
    assert_eq!(
        (config.request_timeout, config.drain_delay, config.snapshot_age),
        (Duration::from_secs(2), Duration::from_secs(3), Duration::from_secs(4))
    );
    assert_eq!(config.slow_request, Duration::from_millis(150));
    assert_eq!(config.engine.scrub_period, Some(Duration::from_secs(5 * 3600)));
}

#[test]
fn tables_are_scrubbed_once_a_week_unless_it_is_said_otherwise() {
    let period = |text: &str| settings(text).resolve(&MACHINE).unwrap().engine.scrub_period;
    assert_eq!(period(""), Some(Duration::from_secs(7 * 24 * 3600)));
    assert_eq!(period("scrub-period = \"90m\""), Some(Duration::from_secs(90 * 60)));
    assert_eq!(period("scrub-period = \"0s\""), None);
}

#[test]
fn there_is_room_for_one_value_of_the_greatest_size_and_for_the_least_store() {
    let config = settings("memory = \"256MiB\"\nvalue-max = \"64MiB\"").resolve(&MACHINE).unwrap();
    assert_eq!((config.limits.memory_bytes, config.engine.memory_bytes), (132 << 20, 124 << 20));
    let config = settings("memory = \"16MiB\"").resolve(&MACHINE).unwrap();
    assert_eq!((config.limits.memory_bytes, config.engine.memory_bytes), (36 << 20, 16 << 20));
}

#[test]
fn the_cluster_is_a_list_or_a_text_in_the_file_and_nothing_when_empty() {
    let as_list = settings("cluster = [\"http://127.0.0.1:8080\"]").resolve(&MACHINE).unwrap();
    let as_text = settings("cluster = \"http://127.0.0.1:8080\"").resolve(&MACHINE).unwrap();
    assert_eq!(as_list.membership, as_text.membership);
    assert_eq!(
        settings("cluster = \"http://a:1, http://b:1\""),
        settings("cluster = [\"http://a:1\", \"http://b:1\"]")
    );
    let empty = settings("cluster = \"\"").resolve(&MACHINE).unwrap();
    assert_eq!(empty.membership, Membership::of(Vec::new()));
}

#[test]
fn keys_may_be_written_with_underscores() {
    let dashes = "self-url = \"u\"\ndefault-from = 1\nnew-cluster = true\ncluster-secret-file = \"f\"\npeer-listen = \"p\"\n\
                  request-timeout = \"2s\"\nslow-request = \"1s\"\nvalue-max = 7\ndrain-delay = \"3s\"\n\
                  scrub-period = \"1h\"\nlog-format = \"json\"";
    assert_eq!(settings(&dashes.replace('-', "_")), settings(dashes));
}

#[test]
fn what_is_said_first_counts() {
    let merged = settings("threads = 1").or(settings("threads = 2\nlog = \"warn\""));
    assert_eq!(merged, settings("threads = 1\nlog = \"warn\""));
}

#[test]
fn a_secret_said_first_in_either_form_counts() {
    let (text, file) = (settings("cluster-secret = \"s\""), settings("cluster-secret-file = \"f\""));
    assert_eq!(text.clone().or(file.clone()), text);
    assert_eq!(file.clone().or(text.clone()), file);
    assert_eq!(Settings::default().or(file.clone()), file);
}

#[test]
fn more_threads_than_there_may_be_are_refused() {
    let large = MachineProperties { files_max: 20_000, ..MACHINE };
    assert!(settings("threads = 255").resolve(&large).is_ok());
    assert_eq!(refusal("threads = 256"), "--threads is at most 255");
}

#[test]
fn an_unknown_key_is_named() {
    let error = Settings::parse("thread = 4").unwrap_err();
    assert!(error.contains("unknown setting `thread`"), "{error}");
}

#[test]
fn what_is_wrong_with_a_file_is_one_line_that_says_where() {
    for (text, place) in [
        ("thread = 4", "line 1: unknown setting"),
        ("log = \"info\"\n\nmemory = 64 MiB\n", "line 3: "),
        ("log = \"info\"\nthreads = \"x\"", "line 2: "),
        ("threads = 1\nthreads = 2", "line 2: "),
        ("[[", "line 1: "),
        ("", ""),
    ] {
        let Err(error) = Settings::parse(text) else {
            assert_eq!(text, "");
            continue;
        };
        assert!(error.starts_with(place) && error.ends_with("correct or remove that line"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_a_sentence() {
    let refusals = [
        ("cluster = [\"http://a:1\"]\nself-url = \"http://b:1\"", "is not in --cluster"),
        (
            "cluster = [\"http://a:1\", \"http://b:1\"]\nlisten = \"0.0.0.0:1\"\nself-url = \"http://a:1\"",
            "secret",
        ),
        ("cluster = [\"http://a:1\", \"http://A:1/\"]", "twice"),
        ("cluster = [\"a:1\"]", "write http://host:port"),
        ("self-url = \"http://a:1\"", "without --cluster"),
        ("memory = \"1MiB\"", "at least 16MiB"),
        ("value-max = \"65MiB\"", "at most"),
        ("memory = \"16MiB\"\nvalue-max = \"8MiB\"", "a quarter of --memory"),
        ("request-timeout = \"0s\"", "longer than 0"),
        ("listen = \"nowhere\"", "--listen \"nowhere\" is not host:port"),
        ("peer-listen = \"nowhere\"", "--peer-listen \"nowhere\" is not host:port"),
    ];
    for (text, says) in refusals {
        let sentence = refusal(text);
        assert!(sentence.contains(says), "{text}: {sentence}");
    }
}
