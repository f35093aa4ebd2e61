"""The conversation of README.md with aiohttp."""

import asyncio
import json
import os
import sys

import aiohttp

URL, PREFIX = sys.argv[1:3]
ENTITY = f"{URL}/v0/entity"
ENTITIES = f"{URL}/v0/entities"


def key(name):
    return {"id": f"{PREFIX}/{name}"}


def passed(step):
    print("ok", step, flush=True)


def check(step, condition, *seen):
    if not condition:
        sys.exit(f"aiohttp: {step}: {seen}")


async def converse(session):
    async def call(method, url=ENTITY, **arguments):
        async with session.request(method, url, **arguments) as answer:
            return answer.status, answer.headers, await answer.read()

    status, headers, _ = await call("PUT", params=key("diary"), data=b"a quiet morning")
    etag = headers.get("ETag")
    check("put", status == 201 and etag, status)
    passed("put")

    status, headers, body = await call("GET", params=key("diary"))
    check("get", (status, body, headers["ETag"]) == (200, b"a quiet morning", etag), status, body)
    passed("get")

    status, headers, body = await call("HEAD", params=key("diary"))
    check("head", (status, headers["Content-Length"], body) == (200, "15", b""), status, headers)
    passed("head")

    status, _, _ = await call("GET", params=key("diary"), headers={"If-None-Match": etag})
    check("get_unchanged", status == 304, status)
    passed("get_unchanged")

    status, _, _ = await call("PUT", params=key("diary"), data=b"x", headers={"If-Match": etag})
    check("put_conditional", status == 501, status)
    passed("put_conditional")

    status, _, body = await call("GET", params=key("diary"), headers={"Range": "bytes=2-6"})
    check("part", (status, body) == (206, b"quiet"), status, body)
    passed("part")

    status, _, _ = await call("DELETE", params=key("diary"))
    check("delete", status == 202, status)
    passed("delete")

    status, headers, body = await call("GET", params=key("diary"))
    check("missing", status == 404 and json.loads(body)["status"] == 404, status, body)
    check("missing", headers["Content-Type"] == "application/problem+json", headers)
    passed("missing")

    status, _, _ = await call("PUT", params=key("note") | {"ttl": "1000"}, data=b"gone")
    check("ttl", status == 201, status)
    status, headers, _ = await call("GET", params=key("note"))
    check("ttl", status == 404 or "Veche-Expires-At" in headers, status, headers)
    for _ in range(100):
        if status == 404:
            break
        await asyncio.sleep(0.1)
        status, _, _ = await call("GET", params=key("note"))
    check("ttl", status == 404, status)
    passed("ttl")

    large = os.urandom(4 << 20)
    status, _, body = await call("PUT", params=key("large"), data=large)
    check("large", status == 201, status, body)
    status, _, body = await call("GET", params=key("large"))
    check("large", status == 200 and body == large, status, len(body))
    passed("large")

    long = PREFIX + "/" + "\u0416" * ((8191 - len(PREFIX)) // 2)
    status, _, body = await call("PUT", params={"id": long}, data=b"long")
    check("long_key", status == 201, status, body)
    status, _, body = await call("GET", params={"id": long})
    check("long_key", (status, body) == (200, b"long"), status, body)
    passed("long_key")

    status, _, body = await call("PUT", params=key("expect"), data=large[: 1 << 20], expect100=True)
    check("expect", status == 201, status, body)
    passed("expect")

    async def entries():
        for name, value, more in [("a", "1", {}), ("b", "2", {"ttl": 99999999999999}), ("c", "3", {})]:
            yield json.dumps({"key": f"{PREFIX}/batch/{name}", "value": value} | more).encode() + b"\n"

    kind = {"Content-Type": "application/x-ndjson"}
    status, _, body = await call("POST", ENTITIES, params={"results": "errors"}, data=entries(), headers=kind)
    results = [json.loads(line) for line in body.splitlines()]
    right = (results[0]["entry"], results[0]["status"], results[1:]) == (2, 400, [{"entries": 3, "failed": 1}])
    check("batch", status == 200 and right, status, body)
    passed("batch")

    async with session.get(ENTITIES, params={"prefix": f"{PREFIX}/batch/"}) as answer:
        body = b"".join([chunk async for chunk, _ in answer.content.iter_chunks()])
    check("range_lines", body == f"{PREFIX}/batch/a\n1{PREFIX}/batch/c\n3".encode(), body)
    passed("range_lines")

    accept = {"Accept": "application/x-ndjson"}
    async with session.get(ENTITIES, params={"prefix": f"{PREFIX}/batch/"}, headers=accept) as answer:
        found = [json.loads(line) async for line in answer.content]
    right = [(entry["key"], entry["value"]) for entry in found]
    check("range_ndjson", right == [(f"{PREFIX}/batch/a", "1"), (f"{PREFIX}/batch/c", "3")], found)
    passed("range_ndjson")

    status, headers, _ = await call("OPTIONS")
    check("options", status == 204 and headers["Allow"], status, headers)
    passed("options")


async def keep_alive():
    opened = 0

    async def count(*_):
        nonlocal opened
        opened += 1

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(count)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30), trace_configs=[trace]) as session:
        for _ in range(100):
            async with session.get(ENTITY, params=key("expect")) as answer:
                check("keep_alive", answer.status == 200, answer.status)
                await answer.read()
    check("keep_alive", opened == 1, f"{opened} connections were opened")
    passed("keep_alive")


async def main():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as session:
        await converse(session)
    await keep_alive()


asyncio.run(main())
