//! The conversation of ../README.md with reqwest.

use reqwest::blocking::{Body, Client, RequestBuilder, Response};
use reqwest::header::{
    ACCEPT, ALLOW, CONTENT_LENGTH, CONTENT_TYPE, ETAG, EXPECT, IF_MATCH, IF_NONE_MATCH, RANGE,
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::error::Error;
use std::io::Cursor;
use std::time::Duration;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

struct Conversation {
    client: Client,
    url: String,
    prefix: String,
}

impl Conversation {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn entity(&self, method: Method, name: &str) -> RequestBuilder {
        self.client.request(method, format!("{}/v0/entity", self.url)).query(&[("id", self.key(name))])
    }

    fn range(&self) -> RequestBuilder {
        self.client.get(format!("{}/v0/entities", self.url)).query(&[("prefix", self.key("batch/"))])
    }

    fn hold(&self) -> Outcome {
        let answer = self.entity(Method::PUT, "diary").body("a quiet morning").send()?;
        expect(&answer, StatusCode::CREATED)?;
        let etag = answer.headers().get(ETAG).ok_or("put: there is no ETag")?.clone();
        println!("ok put");

        let answer = self.entity(Method::GET, "diary").send()?;
        expect(&answer, StatusCode::OK)?;
        same("get", answer.headers().get(ETAG), Some(&etag))?;
        same("get", &answer.text()?[..], "a quiet morning")?;
        println!("ok get");

        let answer = self.entity(Method::HEAD, "diary").send()?;
        expect(&answer, StatusCode::OK)?;
        same("head", answer.headers()[CONTENT_LENGTH].as_bytes(), &b"15"[..])?;
        println!("ok head");

        let answer = self.entity(Method::GET, "diary").header(IF_NONE_MATCH, &etag).send()?;
        expect(&answer, StatusCode::NOT_MODIFIED)?;
        println!("ok get_unchanged");

        let answer = self.entity(Method::PUT, "diary").header(IF_MATCH, &etag).body("x").send()?;
        expect(&answer, StatusCode::NOT_IMPLEMENTED)?;
        println!("ok put_conditional");

        let answer = self.entity(Method::GET, "diary").header(RANGE, "bytes=2-6").send()?;
        expect(&answer, StatusCode::PARTIAL_CONTENT)?;
        same("part", &answer.text()?[..], "quiet")?;
        println!("ok part");

        expect(&self.entity(Method::DELETE, "diary").send()?, StatusCode::ACCEPTED)?;
        println!("ok delete");

        let answer = self.entity(Method::GET, "diary").send()?;
        expect(&answer, StatusCode::NOT_FOUND)?;
        same("missing", answer.headers()[CONTENT_TYPE].as_bytes(), &b"application/problem+json"[..])?;
        same("missing", &answer.json::<Value>()?["status"], &json!(404))?;
        println!("ok missing");

        self.ttl()?;
        self.large_values_and_keys()?;
        self.batch_and_ranges()?;

        let answer = self.client.request(Method::OPTIONS, format!("{}/v0/entity", self.url)).send()?;
        expect(&answer, StatusCode::NO_CONTENT)?;
        answer.headers().get(ALLOW).ok_or("options: there is no Allow")?;
        println!("ok options");

        // The client does not tell how many connections it opened; the node counts them.
        for _ in 0..100 {
            let answer = self.entity(Method::GET, "expect").send()?;
            expect(&answer, StatusCode::OK)?;
            answer.bytes()?;
        }
        println!("ok keep_alive");
        Ok(())
    }

    fn ttl(&self) -> Outcome {
        let answer = self.entity(Method::PUT, "note").query(&[("ttl", 1_000)]).body("gone").send()?;
        expect(&answer, StatusCode::CREATED)?;
        let mut answer = self.entity(Method::GET, "note").send()?;
        if answer.status() == StatusCode::OK {
            answer.headers().get("veche-expires-at").ok_or("ttl: there is no Veche-Expires-At")?;
        }
        for _ in 0..100 {
            if answer.status() == StatusCode::NOT_FOUND {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            answer = self.entity(Method::GET, "note").send()?;
        }
        expect(&answer, StatusCode::NOT_FOUND)?;
        println!("ok ttl");
        Ok(())
    }

    fn large_values_and_keys(&self) -> Outcome {
        let large: Vec<u8> = (0..4u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        expect(&self.entity(Method::PUT, "large").body(large.clone()).send()?, StatusCode::CREATED)?;
        let answer = self.entity(Method::GET, "large").send()?;
        expect(&answer, StatusCode::OK)?;
        if answer.bytes()? != large {
            return Err("large: the bytes differ".into());
        }
        println!("ok large");

        let long = "\u{416}".repeat((8_191 - self.prefix.len()) / 2);
        expect(&self.entity(Method::PUT, &long).body("long").send()?, StatusCode::CREATED)?;
        same("long_key", &self.entity(Method::GET, &long).send()?.text()?[..], "long")?;
        println!("ok long_key");

        let part = large[..1 << 20].to_vec();
        let answer = self.entity(Method::PUT, "expect").header(EXPECT, "100-continue").body(part).send()?;
        expect(&answer, StatusCode::CREATED)?;
        println!("ok expect");
        Ok(())
    }

    fn batch_and_ranges(&self) -> Outcome {
        let entries = [
            json!({ "key": self.key("batch/a"), "value": "1" }),
            json!({ "key": self.key("batch/b"), "value": "2", "ttl": 99_999_999_999_999u64 }),
            json!({ "key": self.key("batch/c"), "value": "3" }),
        ];
        let lines: String = entries.iter().map(|entry| format!("{entry}\n")).collect();
        let batch = self.client.post(format!("{}/v0/entities?results=errors", self.url));
        // A reader has no length and is sent in chunks.
        let body = Body::new(Cursor::new(lines));
        let answer = batch.header(CONTENT_TYPE, "application/x-ndjson").body(body).send()?;
        expect(&answer, StatusCode::OK)?;
        let text = answer.text()?;
        let results = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        same("batch", (&results[0]["entry"], &results[0]["status"]), (&json!(2), &json!(400)))?;
        same("batch", &results[1..], &[json!({ "entries": 3, "failed": 1 })][..])?;
        println!("ok batch");

        let expected = format!("{}\n1{}\n3", self.key("batch/a"), self.key("batch/c"));
        same("range_lines", self.range().send()?.text()?, expected)?;
        println!("ok range_lines");

        let text = self.range().header(ACCEPT, "application/x-ndjson").send()?.text()?;
        let found = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        let pairs: Vec<_> = found.iter().map(|entry| (&entry["key"], &entry["value"])).collect();
        let (a, c) = (json!(self.key("batch/a")), json!(self.key("batch/c")));
        same("range_ndjson", pairs, vec![(&a, &json!("1")), (&c, &json!("3"))])?;
        println!("ok range_ndjson");
        Ok(())
    }
}

fn expect(answer: &Response, status: StatusCode) -> Outcome {
    if answer.status() == status { Ok(()) } else { Err(format!("{answer:?}, expected {status}").into()) }
}

fn same<T: PartialEq + std::fmt::Debug>(step: &str, got: T, expected: T) -> Outcome {
    if got == expected { Ok(()) } else { Err(format!("{step}: got {got:?}, expected {expected:?}").into()) }
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(prefix)) = (arguments.next(), arguments.next()) else {
        return Err("usage: veche-client-reqwest URL PREFIX".into());
    };
    let client = Client::builder().timeout(Duration::from_secs(30)).no_proxy().build()?;
    Conversation { client, url, prefix }.hold()
}
