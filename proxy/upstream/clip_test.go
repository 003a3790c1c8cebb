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
