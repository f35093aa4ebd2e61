// The conversation of README.md with the fetch of Node.js.

import { randomBytes } from "node:crypto";
import { subscribe } from "node:diagnostics_channel";
import { setTimeout as sleep } from "node:timers/promises";

const [url, prefix] = process.argv.slice(2);
let connections = 0;
subscribe("undici:client:connected", () => connections++);

const entity = (name, more = {}) => `${url}/v0/entity?${new URLSearchParams({ id: `${prefix}/${name}`, ...more })}`;
const entities = (parameters) => `${url}/v0/entities?${new URLSearchParams(parameters)}`;
const call = (target, options = {}) => fetch(target, { signal: AbortSignal.timeout(30_000), ...options });

function check(step, condition, ...seen) {
    if (!condition) {
        console.error(`node: ${step}:`, ...seen);
        process.exit(1);
    }
}

const passed = (step) => console.log(`ok ${step}`);

let answer = await call(entity("diary"), { method: "PUT", body: "a quiet morning" });
const etag = answer.headers.get("etag");
check("put", answer.status === 201 && etag, answer);
passed("put");

answer = await call(entity("diary"));
let text = await answer.text();
check("get", answer.status === 200 && text === "a quiet morning" && answer.headers.get("etag") === etag, answer, text);
passed("get");

answer = await call(entity("diary"), { method: "HEAD" });
check("head", answer.status === 200 && answer.headers.get("content-length") === "15", answer);
passed("head");

answer = await call(entity("diary"), { headers: { "If-None-Match": etag } });
check("get_unchanged", answer.status === 304, answer);
passed("get_unchanged");

answer = await call(entity("diary"), { method: "PUT", body: "x", headers: { "If-Match": etag } });
check("put_conditional", answer.status === 501, answer);
await answer.text();
passed("put_conditional");

answer = await call(entity("diary"), { headers: { Range: "bytes=2-6" } });
text = await answer.text();
check("part", answer.status === 206 && text === "quiet", answer, text);
passed("part");

answer = await call(entity("diary"), { method: "DELETE" });
check("delete", answer.status === 202, answer);
passed("delete");

answer = await call(entity("diary"));
check("missing", answer.status === 404 && answer.headers.get("content-type") === "application/problem+json", answer);
check("missing", (await answer.json()).status === 404);
passed("missing");

answer = await call(entity("note", { ttl: 1000 }), { method: "PUT", body: "gone" });
check("ttl", answer.status === 201, answer);
answer = await call(entity("note"));
check("ttl", answer.status === 404 || answer.headers.has("veche-expires-at"), answer);
for (let i = 0; i < 100 && answer.status !== 404; i++) {
    await answer.text();
    await sleep(100);
    answer = await call(entity("note"));
}
check("ttl", answer.status === 404, answer);
await answer.text();
passed("ttl");

const large = randomBytes(4 << 20);
answer = await call(entity("large"), { method: "PUT", body: large });
check("large", answer.status === 201, answer);
answer = await call(entity("large"));
check("large", answer.status === 200 && large.equals(Buffer.from(await answer.arrayBuffer())), answer);
passed("large");

const long = "\u0416".repeat((8191 - prefix.length) >> 1);
answer = await call(entity(long), { method: "PUT", body: "long" });
check("long_key", answer.status === 201, answer);
answer = await call(entity(long));
text = await answer.text();
check("long_key", answer.status === 200 && text === "long", answer, text);
passed("long_key");

// The key of later steps; fetch itself sends no Expect.
answer = await call(entity("expect"), { method: "PUT", body: large.subarray(0, 1 << 20) });
check("expect", answer.status === 201, answer);
console.log("cannot expect: fetch refuses the header");

const lines = new ReadableStream({
    start(controller) {
        const entries = [
            { key: `${prefix}/batch/a`, value: "1" },
            { key: `${prefix}/batch/b`, value: "2", ttl: 99999999999999 },
            { key: `${prefix}/batch/c`, value: "3" },
        ];
        const encoder = new TextEncoder();
        entries.forEach((entry) => controller.enqueue(encoder.encode(`${JSON.stringify(entry)}\n`)));
        controller.close();
    },
});
answer = await call(entities({ results: "errors" }), {
    method: "POST",
    body: lines,
    duplex: "half",
    headers: { "Content-Type": "application/x-ndjson" },
});
const results = (await answer.text()).trimEnd().split("\n").map(JSON.parse);
check("batch", answer.status === 200 && results.length === 2, answer, results);
check("batch", results[0].entry === 2 && results[0].status === 400 && results[1].failed === 1, results);
passed("batch");

answer = await call(entities({ prefix: `${prefix}/batch/` }));
const pieces = [];
for await (const piece of answer.body) pieces.push(piece);
text = Buffer.concat(pieces).toString();
check("range_lines", text === `${prefix}/batch/a\n1${prefix}/batch/c\n3`, text);
passed("range_lines");

answer = await call(entities({ prefix: `${prefix}/batch/` }), { headers: { Accept: "application/x-ndjson" } });
const found = (await answer.text()).trimEnd().split("\n").map(JSON.parse);
const pairs = found.map((entry) => `${entry.key}=${entry.value}`).join();
check("range_ndjson", pairs === `${prefix}/batch/a=1,${prefix}/batch/c=3`, found);
passed("range_ndjson");

answer = await call(`${url}/v0/entity`, { method: "OPTIONS" });
check("options", answer.status === 204 && answer.headers.get("allow"), answer);
passed("options");

const before = connections;
for (let i = 0; i < 100; i++) {
    answer = await call(entity("expect"));
    check("keep_alive", answer.status === 200, answer);
    await answer.arrayBuffer();
}
check("keep_alive", connections - before <= 1, `${connections - before} connections were opened`);
passed("keep_alive");
process.exit(0);
