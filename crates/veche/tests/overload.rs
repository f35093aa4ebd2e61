//! More writes than the disk takes: refused in time, none lost.

mod common;

use common::http::{Connection, get, put};
use common::{Node, data_dir};

const WRITERS: usize = 6;
const WRITES: usize = 250;

#[test]
fn a_flood_of_writes_is_stored_or_refused() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--memory", "16MiB"]);
    let value = |writer: usize, i: usize| format!("{writer}.{i} ").repeat(64 << 10 >> 3);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let address = node.address;
            std::thread::spawn(move || {
                let mut connection = Connection::open(address);
                let mut stored = Vec::new();
                for i in 0..WRITES {
                    let answer = connection.exchange(put(&format!("{writer}.{i}"), value(writer, i)));
                    match answer.status {
                        201 => stored.push(i),
                        504 => answer.assert_problem(504, "may have been stored"),
                        _ => {
                            answer.assert_problem(503, "");
                            assert!(answer.header("retry-after").is_some(), "{answer:?}");
                        }
                    }
                }
                stored
            })
        })
        .collect();
    for (writer, thread) in writers.into_iter().enumerate() {
        let stored = thread.join().expect("every answer is one of these");
        assert!(!stored.is_empty());
        let mut connection = node.connect();
        for i in stored {
            assert_eq!(connection.exchange(get(&format!("{writer}.{i}"))).text(), value(writer, i));
        }
    }
}
