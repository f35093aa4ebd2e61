//! Clients that stand still do not hold up the others.

mod common;

use common::http::{Connection, get, put};
use common::{Node, data_dir};

const STALLED: usize = 500;

#[test]
fn five_hundred_stalled_connections_beside_live_ones() {
    let (_dir, data) = data_dir();
    // Memory enough for all that the stalled ones hold up: where it is short they would lose it.
    let node = Node::start_with(&data, &["--threads", "2", "--memory", "1GiB"]);
    let value = "x".repeat(1 << 20);
    assert_eq!(node.put("large", &value).status, 201);
    let stalled: Vec<Connection> = (0..STALLED)
        .map(|number| {
            let mut connection = node.connect();
            match number % 5 {
                0 => {}
                1 => connection.send("GET /v0/entity?id=k HT"),
                2 => connection
                    .send("PUT /v0/entity?id=s HTTP/1.1\r\nHost: v\r\nContent-Length: 100000\r\n\r\nbegun"),
                3 => connection.send(
                    "PUT /v0/entity?id=s HTTP/1.1\r\nHost: v\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbe",
                ),
                // Asks for more than the sockets buffer, and reads none of it.
                _ => connection.send(get("large").repeat(8)),
            }
            connection
        })
        .collect();
    let live: Vec<_> = (0..4)
        .map(|writer| {
            let address = node.address;
            std::thread::spawn(move || {
                let mut connection = Connection::open(address);
                for i in 0..500 {
                    let key = format!("l{writer}-{}", i % 10);
                    assert_eq!(connection.exchange(put(&key, i.to_string())).status, 201);
                    assert_eq!(connection.exchange(get(&key)).text(), i.to_string());
                }
            })
        })
        .collect();
    live.into_iter().for_each(|thread| thread.join().expect("live connections are served"));
    assert_eq!(node.get("s").status, 404);
    // The node ends the connection of a reader that stops for 120 s, and the load above may take
    // longer on a busy machine. So this reader stops for a part of it only.
    let mut late_reader = node.connect();
    late_reader.send(get("large").repeat(8));
    for i in 0..5 {
        assert_eq!(node.put("beside", i.to_string()).status, 201);
    }
    for _ in 0..8 {
        assert_eq!(late_reader.response().body.len(), value.len(), "whoever reads again gets the rest");
    }
    drop(stalled);
}
