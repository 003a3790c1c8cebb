package proxy

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/foldgate/foldgate/interceptor"
)

// scrubLog is a log handler that takes secrets out of every record: the log
// ends up on disks and in other people's systems, and it carries what upstreams
// print and what went wrong with messages.
type scrubLog struct {
	next slog.Handler
	b    *interceptor.Boundary
}

func (h scrubLog) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// Handle passes a scrubbed copy of r on.
func (h scrubLog) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, h.b.Text(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(h.attr(a))
		return true
	})
	return h.next.Handle(ctx, out)
}

func (h scrubLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.attr(a)
	}
	return scrubLog{h.next.WithAttrs(clean), h.b}
}

func (h scrubLog) WithGroup(name string) slog.Handler { return scrubLog{h.next.WithGroup(name), h.b} }

// attr scrubs one attribute; numbers, times and the like can hold no secret.
func (h scrubLog) attr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		return slog.String(a.Key, h.b.Text(v.String()))
	case slog.KindGroup:
		attrs := v.Group()
		clean := make([]slog.Attr, len(attrs))
		for i, inner := range attrs {
			clean[i] = h.attr(inner)
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(clean...)}
	case slog.KindAny:
		return slog.String(a.Key, h.b.Text(fmt.Sprintf("%+v", v.Any())))
	}
	return a
}
