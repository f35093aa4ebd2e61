"""The conversation of README.md with HTTPX."""

import json
import os
import sys
import time

import httpx

URL, PREFIX = sys.argv[1:3]
connections = 0


def count(event, _):
    global connections
    if event == "connection.connect_tcp.started":
        connections += 1


def key(name):
    return {"id": f"{PREFIX}/{name}"}


def check(step, condition, answer):
    if not condition:
        sys.exit(f"httpx: {step}: {answer.status_code} {dict(answer.headers)} {answer.content[:300]}")


def converse(client):
    answer = client.put("/v0/entity", params=key("diary"), content=b"a quiet morning")
    etag = answer.headers.get("etag")
    check("put", answer.status_code == 201 and etag, answer)
    yield "put"

    answer = client.get("/v0/entity", params=key("diary"))
    right = (answer.status_code, answer.content, answer.headers["etag"]) == (200, b"a quiet morning", etag)
    check("get", right, answer)
    yield "get"

    answer = client.head("/v0/entity", params=key("diary"))
    check("head", answer.status_code == 200 and answer.headers["content-length"] == "15", answer)
    yield "head"

    answer = client.get("/v0/entity", params=key("diary"), headers={"If-None-Match": etag})
    check("get_unchanged", answer.status_code == 304, answer)
    yield "get_unchanged"

    answer = client.put("/v0/entity", params=key("diary"), content=b"x", headers={"If-Match": etag})
    check("put_conditional", answer.status_code == 501, answer)
    yield "put_conditional"

    answer = client.get("/v0/entity", params=key("diary"), headers={"Range": "bytes=2-6"})
    check("part", (answer.status_code, answer.content) == (206, b"quiet"), answer)
    yield "part"

    answer = client.delete("/v0/entity", params=key("diary"))
    check("delete", answer.status_code == 202, answer)
    yield "delete"

    answer = client.get("/v0/entity", params=key("diary"))
    check("missing", answer.status_code == 404 and answer.json()["status"] == 404, answer)
    check("missing", answer.headers["content-type"] == "application/problem+json", answer)
    yield "missing"

    answer = client.put("/v0/entity", params=key("note") | {"ttl": 1000}, content=b"gone")
    check("ttl", answer.status_code == 201, answer)
    answer = client.get("/v0/entity", params=key("note"))
    check("ttl", answer.status_code == 404 or "veche-expires-at" in answer.headers, answer)
    for _ in range(100):
        if answer.status_code == 404:
            break
        time.sleep(0.1)
        answer = client.get("/v0/entity", params=key("note"))
    check("ttl", answer.status_code == 404, answer)
    yield "ttl"

    large = os.urandom(4 << 20)
    answer = client.put("/v0/entity", params=key("large"), content=large)
    check("large", answer.status_code == 201, answer)
    answer = client.get("/v0/entity", params=key("large"))
    check("large", answer.status_code == 200 and answer.content == large, answer)
    yield "large"

    long = PREFIX + "/" + "\u0416" * ((8191 - len(PREFIX)) // 2)
    answer = client.put("/v0/entity", params={"id": long}, content=b"long")
    check("long_key", answer.status_code == 201, answer)
    answer = client.get("/v0/entity", params={"id": long})
    check("long_key", (answer.status_code, answer.content) == (200, b"long"), answer)
    yield "long_key"

    headers = {"Expect": "100-continue"}
    answer = client.put("/v0/entity", params=key("expect"), content=large[: 1 << 20], headers=headers)
    check("expect", answer.status_code == 201, answer)
    yield "expect"

    def entries():
        for name, value, more in [("a", "1", {}), ("b", "2", {"ttl": 99999999999999}), ("c", "3", {})]:
            yield json.dumps({"key": f"{PREFIX}/batch/{name}", "value": value} | more).encode() + b"\n"

    headers = {"Content-Type": "application/x-ndjson"}
    answer = client.post("/v0/entities", params={"results": "errors"}, content=entries(), headers=headers)
    results = [json.loads(line) for line in answer.iter_lines()]
    right = (results[0]["entry"], results[0]["status"], results[1:]) == (2, 400, [{"entries": 3, "failed": 1}])
    check("batch", answer.status_code == 200 and right, answer)
    yield "batch"

    with client.stream("GET", "/v0/entities", params={"prefix": f"{PREFIX}/batch/"}) as answer:
        answer.read()
    check("range_lines", answer.content == f"{PREFIX}/batch/a\n1{PREFIX}/batch/c\n3".encode(), answer)
    yield "range_lines"

    headers = {"Accept": "application/x-ndjson"}
    with client.stream("GET", "/v0/entities", params={"prefix": f"{PREFIX}/batch/"}, headers=headers) as answer:
        found = [json.loads(line) for line in answer.iter_lines()]
    if [(entry["key"], entry["value"]) for entry in found] != [(f"{PREFIX}/batch/a", "1"), (f"{PREFIX}/batch/c", "3")]:
        sys.exit(f"httpx: range_ndjson: {found}")
    yield "range_ndjson"

    answer = client.options("/v0/entity")
    check("options", answer.status_code == 204 and answer.headers["allow"], answer)
    yield "options"


with httpx.Client(base_url=URL, timeout=30) as client:
    for step in converse(client):
        print("ok", step, flush=True)
with httpx.Client(base_url=URL, timeout=30) as client:
    for _ in range(100):
        answer = client.get("/v0/entity", params=key("expect"), extensions={"trace": count})
        check("keep_alive", answer.status_code == 200, answer)
if connections != 1:
    sys.exit(f"httpx: keep_alive: {connections} connections were opened")
print("ok keep_alive")
