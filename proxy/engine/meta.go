package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// TakeMeta reads foldgate's part of params._meta, and takes it out of what is sent on: the branch, the
// context, the thread, causes and the trace context. strict is trace.correlation: strict. The error is
// a [*wire.Error].
func TakeMeta(c *interceptor.Call, meta *wire.Meta, r *interceptor.Recorder, strict bool) error {
	if bytes.Contains(meta.Raw, []byte(wire.MetaPrefix)) || bytes.IndexByte(meta.Raw, '\\') >= 0 { // a key may be spelled with escapes
		c.Target.Forward = wire.WithoutOwnMeta(c.Target.Params)
	}
	if id, _ := rawjson.GetString(meta.BranchID); id != "" {
		c.Attribution.BranchID, c.Attribution.Source = id, interceptor.SourceMeta
	}
	c.Origin.Thread, c.Origin.Spawned = hostThread(meta)
	traceparent, _ := rawjson.GetString(meta.Traceparent)
	if tp, ok := trace.ParseTraceparent(traceparent); ok { // nothing else gets into the trace
		c.Origin.Traceparent = tp.String()
	}
	// A correlation is under either of two names. trace.correlation says whether its deprecated form,
	// a string, is taken.
	key := wire.MetaCorrelation
	var err error
	c.Origin.Correlates, c.Origin.Deprecated, err = trace.DecodeCorrelation(meta.Correlation, meta.CorrelationLater, strict)
	if err == nil {
		key, err = wire.MetaContext, subContext(c, meta.Context, strict)
	}
	if err == nil && r.Secret(c.Attribution.SubContext) { // without it the path would name another context, or none
		c.Attribution.SubContext = ""
		err = errors.New("it looks like a secret, which the trace would keep; use another name")
	}
	for _, code := range c.Origin.Deprecated {
		r.Deprecated(&c.Origin, code)
	}
	if err != nil {
		return &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf("_meta[%q]: %v", key, err)}
	}
	return nil
}

// hostThread returns the thread that Codex names in _meta, "" for none, and whether another
// thread started it. It is no evidence of who calls: it only tells the calls of one connection
// apart.
func hostThread(meta *wire.Meta) (thread string, spawned bool) {
	thread, _ = rawjson.GetString(meta.Thread)
	if len(thread) != 36 || uuid.Validate(thread) != nil { // nothing else gets into the trace
		return "", false
	}
	parent, _ := rawjson.GetString(meta.Turn, "parent_thread_id")
	return thread, parent != "" && parent != thread
}

// subContext reads the context that a host puts a call in, below the context of its branch. The
// object form of an earlier draft is refused if strict.
func subContext(c *interceptor.Call, value json.RawMessage, strict bool) error {
	if value == nil {
		return nil
	}
	if rawjson.KindOf(value) == rawjson.String { // CheckBranch refuses a bad path
		c.Attribution.SubContext = rawjson.Unquote(value)
		return nil
	}
	path, deprecated, err := contextpath.Decode(value)
	c.Origin.Deprecated = append(c.Origin.Deprecated, deprecated...)
	if err == nil && len(deprecated) > 0 && strict {
		err = fmt.Errorf("an object is a form of an earlier draft, which trace.correlation: strict refuses; send the path as a string: %q", path)
	}
	if err != nil {
		return err
	}
	c.Attribution.SubContext = string(path)
	return nil
}
