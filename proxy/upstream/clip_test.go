package upstream

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// What an upstream says is cleaned before it is cut: of half a secret nobody
// can tell that it is one.
func TestTextsAreCleanedBeforeTheyAreCut(t *testing.T) {
	const secret = "SECRETSECRETSECRET"
	var log bytes.Buffer
	cfg := &Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Clean: func(s string) string { return strings.ReplaceAll(s, secret, "[REDACTED]") }}
	around := func(n int) string { return strings.Repeat("x", n-len(secret)/2) + secret + strings.Repeat("y", 100) }

	complained := &complaint{}
	logLines(strings.NewReader(around(maxLogLine)+"\n"+strings.Repeat("z", 2*maxClean)+"\nshort "+secret+"\n"), cfg, complained)
	in := &connection{}
	in.init(cfg, nil)
	in.unreadable([]byte(around(200)), nil, errUnreadable, nil)
	said := log.String()
	complained.add([]byte("error " + around(294)))
	if text := complained.text(cfg); strings.Contains(text, secret[:6]) || len(text) != len(": ")+300 {
		t.Errorf("the error is %q", text)
	}
	for _, resp := range []*http.Response{
		{StatusCode: 500}, {StatusCode: 302, Request: &http.Request{URL: &url.URL{Path: "/mcp"}}, Header: http.Header{"Location": {"https://h/" + around(190)}}},
	} {
		said += newStatusError(cfg, resp, []byte(around(200))).Error()
	}
	said = strings.ReplaceAll(said, "short "+secret, "") // the log cleans what is whole
	if strings.Contains(said, secret[:6]) || strings.Count(said, "[REDAC") != 4 {
		t.Errorf("of texts with a secret at the cut is told: %s", said)
	}
	if n := strings.Count(said, "z"); n != maxLogLine {
		t.Errorf("%d bytes of a long line are logged, want %d", n, maxLogLine)
	}
}

// A private key that a child process prints in lines is neither in the log nor in an error, and the lines behind it are.
func TestPrivateKeyInLines(t *testing.T) {
	body := []string{strings.Repeat("MIIEvAIB", 8), strings.Repeat("Qm7vX2kL", 8), strings.Repeat("p9ZtRr4X", 8), "yWq3/a=="}
	for _, prefix := range []string{"", "2026-11-28 worker | "} {
		for _, end := range []string{"-----END RSA PRIVATE KEY-----", "no more"} {
			var log bytes.Buffer
			cfg := &Config{Log: slog.New(slog.NewTextHandler(&log, nil))}
			lines := []string{"-----BEGIN RSA PRIVATE KEY-----", body[0], body[1], body[2]}
			if prefix == "" {
				lines = append(lines[:1], append([]string{"Proc-Type: 4,ENCRYPTED", "", body[0], body[1], body[2]}, body[3])...)
			}
			text := prefix + strings.Join(lines, "\n"+prefix) + "\n"
			said := &complaint{}
			logLines(strings.NewReader(text), cfg, said)
			if told := said.text(cfg); strings.Contains(told, "p9ZtRr4X") || strings.Contains(told, "yWq3") {
				t.Errorf("an error has a line of the key: %s", told)
			}
			logLines(strings.NewReader(text+prefix+end+"\n"+body[0]+"\n"), cfg, said)
			c := &connection{}
			c.init(cfg, nil)
			for line := range strings.Lines(text + prefix + end + "\n" + prefix + "garbage\n") {
				c.unreadable([]byte(strings.TrimSuffix(line, "\n")), nil, errUnreadable, nil)
			}
			got := log.String()
			for _, line := range body[1:] {
				if strings.Contains(got, line) {
					t.Errorf("the log has the line %s of the key: %s", line, got)
				}
			}
			if strings.Count(got, end) != 2 || strings.Count(got, body[0]) != 1 || !strings.Contains(got, "garbage") {
				t.Errorf("lines behind the key are missing: %s", got)
			}
		}
	}
}
