"""The conversation of README.md with Requests."""

import json
import os
import sys
import time

import requests

URL, PREFIX = sys.argv[1:3]
ENTITY = f"{URL}/v0/entity"
ENTITIES = f"{URL}/v0/entities"
TIMEOUT_S = 30


class Counting(requests.adapters.HTTPAdapter):
    """Tells how many connections were opened."""

    def connections(self):
        pools = self.poolmanager.pools
        return sum(pools[key].num_connections for key in pools.keys())


def key(name):
    return {"id": f"{PREFIX}/{name}"}


def check(step, condition, response):
    if not condition:
        sys.exit(f"requests: {step}: {response.status_code} {dict(response.headers)} {response.content[:300]}")


def converse(session):
    def call(method, url, **arguments):
        return session.request(method, url, timeout=TIMEOUT_S, **arguments)

    answer = call("PUT", ENTITY, params=key("diary"), data=b"a quiet morning")
    etag = answer.headers.get("ETag")
    check("put", answer.status_code == 201 and etag, answer)
    yield "put"

    answer = call("GET", ENTITY, params=key("diary"))
    right = (answer.status_code, answer.content, answer.headers["ETag"]) == (200, b"a quiet morning", etag)
    check("get", right, answer)
    yield "get"

    answer = call("HEAD", ENTITY, params=key("diary"))
    check("head", answer.status_code == 200 and answer.headers["Content-Length"] == "15" and not answer.content, answer)
    yield "head"

    answer = call("GET", ENTITY, params=key("diary"), headers={"If-None-Match": etag})
    check("get_unchanged", answer.status_code == 304, answer)
    yield "get_unchanged"

    answer = call("PUT", ENTITY, params=key("diary"), data=b"x", headers={"If-Match": etag})
    check("put_conditional", answer.status_code == 501, answer)
    yield "put_conditional"

    answer = call("GET", ENTITY, params=key("diary"), headers={"Range": "bytes=2-6"})
    check("part", (answer.status_code, answer.content) == (206, b"quiet"), answer)
    yield "part"

    answer = call("DELETE", ENTITY, params=key("diary"))
    check("delete", answer.status_code == 202, answer)
    yield "delete"

    answer = call("GET", ENTITY, params=key("diary"))
    check("missing", answer.status_code == 404 and answer.headers["Content-Type"] == "application/problem+json", answer)
    check("missing", answer.json()["status"] == 404, answer)
    yield "missing"

    answer = call("PUT", ENTITY, params=key("note") | {"ttl": 1000}, data=b"gone")
    check("ttl", answer.status_code == 201, answer)
    answer = call("GET", ENTITY, params=key("note"))
    check("ttl", answer.status_code == 404 or "Veche-Expires-At" in answer.headers, answer)
    for _ in range(100):
        if answer.status_code == 404:
            break
        time.sleep(0.1)
        answer = call("GET", ENTITY, params=key("note"))
    check("ttl", answer.status_code == 404, answer)
    yield "ttl"

    large = os.urandom(4 << 20)
    answer = call("PUT", ENTITY, params=key("large"), data=large)
    check("large", answer.status_code == 201, answer)
    answer = call("GET", ENTITY, params=key("large"))
    check("large", answer.status_code == 200 and answer.content == large, answer)
    yield "large"

    long = PREFIX + "/" + "\u0416" * ((8191 - len(PREFIX)) // 2)
    answer = call("PUT", ENTITY, params={"id": long}, data=b"long")
    check("long_key", answer.status_code == 201, answer)
    answer = call("GET", ENTITY, params={"id": long})
    check("long_key", (answer.status_code, answer.content) == (200, b"long"), answer)
    yield "long_key"

    answer = call("PUT", ENTITY, params=key("expect"), data=large[: 1 << 20], headers={"Expect": "100-continue"})
    check("expect", answer.status_code == 201, answer)
    yield "expect"

    entries = [
        {"key": f"{PREFIX}/batch/a", "value": "1"},
        {"key": f"{PREFIX}/batch/b", "value": "2", "ttl": 99999999999999},
        {"key": f"{PREFIX}/batch/c", "value": "3"},
    ]
    # A generator is sent in chunks.
    lines = (json.dumps(entry).encode() + b"\n" for entry in entries)
    headers = {"Content-Type": "application/x-ndjson"}
    answer = call("POST", ENTITIES, params={"results": "errors"}, data=lines, headers=headers)
    results = [json.loads(line) for line in answer.iter_lines()]
    right = (results[0]["entry"], results[0]["status"], results[1:]) == (2, 400, [{"entries": 3, "failed": 1}])
    check("batch", answer.status_code == 200 and right, answer)
    yield "batch"

    answer = call("GET", ENTITIES, params={"prefix": f"{PREFIX}/batch/"}, stream=True)
    body = b"".join(answer.iter_content(None))
    check("range_lines", body == f"{PREFIX}/batch/a\n1{PREFIX}/batch/c\n3".encode(), answer)
    yield "range_lines"

    headers = {"Accept": "application/x-ndjson"}
    answer = call("GET", ENTITIES, params={"prefix": f"{PREFIX}/batch/"}, headers=headers, stream=True)
    found = [json.loads(line) for line in answer.iter_lines()]
    right = [(entry["key"], entry["value"]) for entry in found]
    check("range_ndjson", right == [(f"{PREFIX}/batch/a", "1"), (f"{PREFIX}/batch/c", "3")], answer)
    yield "range_ndjson"

    answer = call("OPTIONS", ENTITY)
    check("options", answer.status_code == 204 and answer.headers["Allow"], answer)
    yield "options"


def keep_alive():
    with requests.Session() as session:
        adapter = Counting()
        session.mount("http://", adapter)
        for _ in range(100):
            answer = session.get(ENTITY, params=key("expect"), timeout=TIMEOUT_S)
            check("keep_alive", answer.status_code == 200, answer)
        if adapter.connections() != 1:
            sys.exit(f"requests: keep_alive: {adapter.connections()} connections were opened")


with requests.Session() as session:
    for step in converse(session):
        print("ok", step, flush=True)
keep_alive()
print("ok keep_alive")
