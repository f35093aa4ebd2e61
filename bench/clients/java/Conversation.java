// The conversation of README.md with java.net.http, run as one source file: java Conversation.java URL PREFIX.

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Random;

public class Conversation {
    // HTTP/2 is what it prefers: the first request offers an upgrade.
    private final HttpClient client = HttpClient.newHttpClient();
    private final String url;
    private final String prefix;

    Conversation(String url, String prefix) {
        this.url = url;
        this.prefix = prefix;
    }

    public static void main(String[] arguments) throws Exception {
        new Conversation(arguments[0], arguments[1]).hold();
    }

    private String entity(String name) {
        return "/v0/entity?id=" + URLEncoder.encode(prefix + "/" + name, StandardCharsets.UTF_8);
    }

    private HttpRequest.Builder request(String method, String target, BodyPublisher body) {
        return HttpRequest.newBuilder(URI.create(url + target)).timeout(Duration.ofSeconds(30)).method(method, body);
    }

    private HttpResponse<byte[]> call(HttpRequest.Builder request) throws IOException, InterruptedException {
        return client.send(request.build(), BodyHandlers.ofByteArray());
    }

    private HttpResponse<byte[]> get(String target) throws IOException, InterruptedException {
        return call(request("GET", target, BodyPublishers.noBody()));
    }

    private HttpResponse<byte[]> put(String target, byte[] value) throws IOException, InterruptedException {
        return call(request("PUT", target, BodyPublishers.ofByteArray(value)));
    }

    private static String text(HttpResponse<byte[]> answer) {
        return new String(answer.body(), StandardCharsets.UTF_8);
    }

    private static String header(HttpResponse<?> answer, String name) {
        return answer.headers().firstValue(name).orElse("");
    }

    private static void check(String step, boolean right, HttpResponse<byte[]> answer) {
        if (!right) {
            String body = text(answer);
            System.err.println("java: " + step + ": " + answer + " " + body.substring(0, Math.min(300, body.length())));
            System.exit(1);
        }
    }

    private static void passed(String step) {
        System.out.println("ok " + step);
    }

    private void hold() throws Exception {
        var answer = put(entity("diary"), "a quiet morning".getBytes());
        var etag = header(answer, "etag");
        check("put", answer.statusCode() == 201 && !etag.isEmpty(), answer);
        passed("put");

        answer = get(entity("diary"));
        check("get", answer.statusCode() == 200 && text(answer).equals("a quiet morning"), answer);
        check("get", header(answer, "etag").equals(etag), answer);
        passed("get");

        answer = call(request("HEAD", entity("diary"), BodyPublishers.noBody()));
        check("head", answer.statusCode() == 200 && header(answer, "content-length").equals("15"), answer);
        passed("head");

        answer = call(request("GET", entity("diary"), BodyPublishers.noBody()).header("If-None-Match", etag));
        check("get_unchanged", answer.statusCode() == 304, answer);
        passed("get_unchanged");

        answer = call(request("PUT", entity("diary"), BodyPublishers.ofString("x")).header("If-Match", etag));
        check("put_conditional", answer.statusCode() == 501, answer);
        passed("put_conditional");

        answer = call(request("GET", entity("diary"), BodyPublishers.noBody()).header("Range", "bytes=2-6"));
        check("part", answer.statusCode() == 206 && text(answer).equals("quiet"), answer);
        passed("part");

        answer = call(request("DELETE", entity("diary"), BodyPublishers.noBody()));
        check("delete", answer.statusCode() == 202, answer);
        passed("delete");

        answer = get(entity("diary"));
        check("missing", answer.statusCode() == 404, answer);
        check("missing", header(answer, "content-type").equals("application/problem+json"), answer);
        passed("missing");

        answer = put(entity("note") + "&ttl=1000", "gone".getBytes());
        check("ttl", answer.statusCode() == 201, answer);
        answer = get(entity("note"));
        check("ttl", answer.statusCode() == 404 || !header(answer, "veche-expires-at").isEmpty(), answer);
        for (int i = 0; i < 100 && answer.statusCode() != 404; i++) {
            Thread.sleep(100);
            answer = get(entity("note"));
        }
        check("ttl", answer.statusCode() == 404, answer);
        passed("ttl");

        byte[] large = new byte[4 << 20];
        new Random().nextBytes(large);
        answer = put(entity("large"), large);
        check("large", answer.statusCode() == 201, answer);
        answer = get(entity("large"));
        check("large", answer.statusCode() == 200 && Arrays.equals(answer.body(), large), answer);
        passed("large");

        var longKey = "\u0416".repeat((8191 - prefix.length()) / 2);
        answer = put(entity(longKey), "long".getBytes());
        check("long_key", answer.statusCode() == 201, answer);
        answer = get(entity(longKey));
        check("long_key", answer.statusCode() == 200 && text(answer).equals("long"), answer);
        passed("long_key");

        var part = BodyPublishers.ofByteArray(large, 0, 1 << 20);
        answer = call(request("PUT", entity("expect"), part).expectContinue(true));
        check("expect", answer.statusCode() == 201, answer);
        passed("expect");

        var lines = ("{\"key\":\"P/batch/a\",\"value\":\"1\"}\n{\"key\":\"P/batch/b\",\"value\":\"2\",\"ttl\":99999999999999}\n"
                + "{\"key\":\"P/batch/c\",\"value\":\"3\"}\n").replace("P", prefix).getBytes();
        // A stream has no length and is sent in chunks.
        var stream = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(lines));
        answer = call(request("POST", "/v0/entities?results=errors", stream).header("Content-Type", "application/x-ndjson"));
        check("batch", answer.statusCode() == 200 && text(answer).startsWith("{\"entry\":2,\"status\":400,"), answer);
        check("batch", text(answer).endsWith("{\"entries\":3,\"failed\":1}\n"), answer);
        passed("batch");

        var range = "/v0/entities?prefix=" + URLEncoder.encode(prefix + "/batch/", StandardCharsets.UTF_8);
        answer = get(range);
        check("range_lines", text(answer).equals(prefix + "/batch/a\n1" + prefix + "/batch/c\n3"), answer);
        passed("range_lines");

        var ndjson = request("GET", range, BodyPublishers.noBody()).header("Accept", "application/x-ndjson").build();
        var found = client.send(ndjson, BodyHandlers.ofLines()).body().toList();
        var right = found.size() == 2 && found.get(0).startsWith("{\"key\":\"" + prefix + "/batch/a\",\"value\":\"1\"")
                && found.get(1).startsWith("{\"key\":\"" + prefix + "/batch/c\",\"value\":\"3\"");
        if (!right) {
            System.err.println("java: range_ndjson: " + found);
            System.exit(1);
        }
        passed("range_ndjson");

        answer = call(request("OPTIONS", "/v0/entity", BodyPublishers.noBody()));
        check("options", answer.statusCode() == 204 && !header(answer, "allow").isEmpty(), answer);
        passed("options");

        // The client does not tell how many connections it opened; the node counts them.
        for (int i = 0; i < 100; i++) {
            answer = get(entity("expect"));
            check("keep_alive", answer.statusCode() == 200, answer);
        }
        passed("keep_alive");
    }
}
