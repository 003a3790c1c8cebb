package proxy

import (
	"fmt"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// correlate reads the correlation ids that a host gives with a call, under
// either name of the field. The deprecated form, a string, is taken or refused
// as trace.correlation says.
func (g *Gateway) correlate(c *interceptor.Call, meta []byte) error {
	ids, has := rawjson.Get(meta, metaCorrelation)
	later, hasLater := rawjson.Get(meta, metaCorrelationAlias)
	if !has && !hasLater {
		return nil
	}
	envelope := []byte(`{}`)
	if has {
		envelope = rawjson.Set(envelope, ids, "correlationId")
	}
	if hasLater {
		envelope = rawjson.Set(envelope, later, "correlation_id")
	}
	var err error
	c.Origin.Correlates, c.Origin.Deprecated, err = trace.DecodeCorrelation(envelope, trace.Mode(g.cfg.Trace.Correlation))
	for _, code := range c.Origin.Deprecated {
		g.recorder.Deprecated(code)
	}
	return err
}

// subContext reads the context that a host puts a call in, below that of its
// branch. The object form of an earlier draft is taken or refused as a string
// correlation is.
func (g *Gateway) subContext(c *interceptor.Call, meta []byte) error {
	value, ok := rawjson.Get(meta, metaContext)
	if !ok {
		return nil
	}
	if rawjson.KindOf(value) == rawjson.String { // a bad path is refused, and recorded, where the branch is known
		c.Attribution.SubContext = rawjson.Unquote(value)
		return nil
	}
	path, deprecated, err := contextpath.Decode(value)
	if err == nil && len(deprecated) > 0 && trace.Mode(g.cfg.Trace.Correlation) == trace.Strict {
		err = fmt.Errorf("an object is a form of an earlier draft, which trace.correlation: strict refuses; send the path as a string: %q", path)
	}
	if err != nil {
		return err
	}
	c.Attribution.SubContext, c.Origin.Deprecated = string(path), append(c.Origin.Deprecated, deprecated...)
	for _, code := range deprecated {
		g.recorder.Deprecated(code)
	}
	return nil
}
