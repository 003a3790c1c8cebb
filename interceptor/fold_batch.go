package interceptor

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// batchTokens is the largest result of a batch that is delivered to it as it
// is. What is larger costs its branch one line.
const batchTokens = 48

// applyBatch hands the whole result to the batch that made the call, and
// delivers no more than a line: no model reads it.
func (f *folder) applyBatch(ctx context.Context, c *Call, res *Result) *Result {
	whole, ok := f.storable(ctx, c, res)
	if !ok {
		whole = &Result{Body: json.RawMessage(`{"content":[{"type":"text","text":"the result could not be checked for secrets and was withheld"}],"isError":true}`)}
		res = whole
	}
	c.Outcome.Whole = whole
	n := c.measure(f.gauge, res)
	c.Outcome.Tokens.Out = n
	if n <= batchTokens {
		return res
	}
	body := append([]byte(`{"content":[{"type":"text","text":`), rawjson.Quote(fmt.Sprintf("[%d tokens kept for the batch]", n))...)
	body = append(body, `}]`...)
	for _, key := range []string{"isError", "resultType"} {
		if v, ok := rawjson.Get(res.Body, key); ok {
			body = append(append(body, `,"`+key+`":`...), v...)
		}
	}
	out := &Result{Body: append(body, '}'), Extra: res.Extra}
	c.Outcome.Folded, c.Outcome.Fold, c.Outcome.Saved = true, c.Target.Batch, n-c.measure(f.gauge, out)
	return out
}

// Text returns what a model would read of a result of tools/call as one text,
// and its structured content as JSON where the text does not say the same.
func (r *Result) Text() (text, structured string) {
	if r.Error != nil {
		msg, _ := rawjson.GetString(r.Error, "message")
		return msg, ""
	}
	p := splitResult(r.Body)
	return p.text, string(p.structured)
}
