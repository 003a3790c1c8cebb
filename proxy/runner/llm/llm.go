// Package llm asks language models over HTTP: endpoints with OpenAI's chat completions, which most
// servers of models speak, and Anthropic's Messages. The SDKs of both repeat requests that failed for a
// passing reason.
package llm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/runner"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Open returns the model of a valid configuration. It does not connect.
func Open(c config.LLM) runner.Model {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("the endpoint redirects, which would send the key elsewhere: set llm.url to where it is")
	}}
	if c.API == config.APIAnthropic {
		return &retrying{c, newAnthropic(c, client)}
	}
	return &retrying{c, newOpenAI(c, client)}
}

const (
	maxRetries = 2        // of a request, by the SDK for a status, and again for a stream that was cut
	maxAnswer  = 16 << 20 // bytes of one answer
)

// bounded is a middleware of both SDKs: it bounds an answer, which a hostile endpoint could stream without
// end.
func bounded(r *http.Request, next func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	res, err := next(r)
	if res != nil && res.Body != nil {
		res.Body = http.MaxBytesReader(nil, res.Body, maxAnswer)
	}
	return res, err
}

// errCut means that a stream ended before the answer did. Nothing has happened yet, so the request can
// be repeated.
var errCut = errors.New("the stream of the answer was cut")

// retrying repeats requests whose answer was cut.
type retrying struct {
	config.LLM
	once runner.Model
}

// Turn implements [runner.Model].
func (m *retrying) Turn(ctx context.Context, r *runner.Request) (reply runner.Reply, err error) {
	for range maxRetries + 1 {
		if reply, err = m.once.Turn(ctx, r); err == nil || ctx.Err() != nil || !errors.Is(err, errCut) && !errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
	}
	if err == nil {
		return reply, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return reply, cause
	}
	if asked, ok := errors.AsType[*url.Error](err); ok { // it quotes the URL, which can hold a credential
		err = asked.Err
	}
	return reply, errors.New(clean(m.Key, "the model at llm.url gave no answer: "+err.Error()))
}

// clean takes the key out of a text.
func clean(key config.Secret, text string) string {
	if key != "" {
		text = strings.ReplaceAll(text, string(key), "[REDACTED:llm.key]")
	}
	return text
}

// refused describes the answer of an endpoint with a status. It does not quote an answer about a key,
// which may show a part of it.
func refused(status int, message string) error {
	text := fmt.Sprintf("status %d %s", status, http.StatusText(status))
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return errors.New(text + ": check llm.key")
	case status == http.StatusTooManyRequests:
		text += fmt.Sprintf(" after %d retries", maxRetries)
	}
	if message = strings.Join(strings.Fields(message), " "); message != "" {
		text += ": " + wire.Clip(message)
	}
	return errors.New(strings.ToValidUTF8(text, ""))
}
