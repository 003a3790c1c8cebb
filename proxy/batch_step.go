package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/wire"
)

// stepResult is what one call of a batch came to.
type stepResult struct {
	text, structured string
	tokens           int
	fault            string // why there is no result; "" where there is one
	server, tool     string
}

// maxBatchBytes bounds the results of one batch together.
const maxBatchBytes = 64 << 20

// step makes call i and notes what it came to.
func (b *batch) step(ctx context.Context, i int) {
	r := &b.results[i]
	// It is stored, and may name a tool that no list has.
	defer func() { r.fault = b.g.boundary.Text(r.fault) }()
	if err := context.Cause(ctx); err != nil {
		r.fault = "not called: " + err.Error()
		return
	}
	st := b.in.Steps[i]
	fl := &inbound{
		ex: &edge.Exchange{Msg: wire.Message{ID: rawjson.Quote(fmt.Sprintf("%s/%d", b.handle, i+1)), Method: "tools/call"}, Emit: b.emit},
		s:  b.s, modern: b.modern,
	}
	fl.ctx, fl.cancel = context.WithCancelCause(ctx)
	defer fl.cancel(nil)
	defer fl.arrived()
	c, e, err := b.call(fl, st)
	if err != nil {
		r.fault = err.Error()
		return
	}
	r.server, r.tool = e.up.Key, e.own
	res, err := b.g.forward(fl, c, e.up)
	if err != nil {
		r.fault = faultText(err)
		return
	}
	b.take(r, c, res)
}

// call describes one call of the batch to the chain.
func (b *batch) call(fl *inbound, st runStep) (*interceptor.Call, entry, error) {
	e, ok := b.g.findTool(fl, st.Tool)
	if !ok {
		return nil, entry{}, b.g.unknownTool(st.Tool)
	}
	if e.up == nil {
		return nil, entry{}, fmt.Errorf("%s can't be part of a batch", st.Tool)
	}
	if err := b.g.mayBatch(st.Tool, e); err != nil {
		return nil, entry{}, err
	}
	args := st.Arguments
	if e.injected {
		args = rawjson.Delete(args, branchArgument) // the batch's branch pays
	}
	params := json.RawMessage(append(append(append([]byte(`{"name":`), rawjson.Quote(e.own)...), `,"arguments":`...), append(slices.Clone(args), '}')...))
	fl.ex.Msg.Params, fl.params = params, e.params
	branch := b.branch
	c := &interceptor.Call{
		Origin: interceptor.Origin{
			Direction: interceptor.FromHost, Session: b.session, Principal: b.principal, From: "foldgate",
			Revision: fl.s.speaks(fl), ID: fl.ex.Msg.ID, Correlates: []string{b.cause}, Traceparent: b.traceparent,
		},
		Target:      interceptor.Target{Method: "tools/call", Name: e.own, Params: params, Forward: params, Arguments: args, Metered: true, Batch: b.rest},
		Attribution: interceptor.Attribution{Branch: &branch},
	}
	if e.flow != nil {
		e.flow.enter(c)
	}
	return c, e, nil
}

// mayBatch reports whether a tool may be called in a batch: hosts ask their
// user about each tool, and must not be got round. A tool that only reads may,
// as may those that the configuration names.
func (g *Gateway) mayBatch(shown string, e entry) error {
	if ro, _ := rawjson.Get(e.raw, "annotations", "readOnlyHint"); string(ro) == "true" || g.cfg.Run.Allows(shown) {
		return nil
	}
	return fmt.Errorf("%s does not say that it only reads, and run.allow does not name it: call it directly", shown)
}

// take notes a result.
func (b *batch) take(r *stepResult, c *interceptor.Call, res *interceptor.Result) {
	whole := res
	if c.Outcome.Whole != nil {
		whole = c.Outcome.Whole
	}
	r.tokens = c.Outcome.Tokens.Out
	r.text, r.structured = whole.Text()
	failed, _ := rawjson.Get(whole.Body, "isError")
	kind, _ := rawjson.GetString(whole.Body, "resultType")
	switch {
	case whole.Error != nil || string(failed) == "true":
		r.fault = r.text
		r.text, r.structured = "", ""
	case kind == "input_required":
		r.fault = "the tool asks for input, which a batch can't give: call it directly"
		r.text, r.structured = "", ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes += len(r.text) + len(r.structured); b.bytes > maxBatchBytes {
		r.fault, r.text, r.structured = fmt.Sprintf("the batch's results are over %d bytes together: split it", maxBatchBytes), "", ""
	}
}

// faultText is an error as an answer shows it.
func faultText(err error) string {
	var r *interceptor.Refusal
	if errors.As(err, &r) {
		return r.Code + ": " + r.Message
	}
	return err.Error()
}
