package engine

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/foldgate/foldgate/interceptor"
)

// scrubLog is a log handler that takes secrets out of every record: the log carries the output of
// servers and parts of messages, and ends up on disks and in foreign systems.
type scrubLog struct {
	slog.Handler
	b *interceptor.Boundary
}

// Handle passes a scrubbed copy of r on.
func (h scrubLog) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, h.b.Text(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(h.attr(a))
		return true
	})
	return h.Handler.Handle(ctx, out)
}

func (h scrubLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return scrubLog{h.Handler.WithAttrs(h.attrs(attrs)), h.b}
}

func (h scrubLog) WithGroup(name string) slog.Handler {
	return scrubLog{h.Handler.WithGroup(name), h.b}
}

func (h scrubLog) attrs(attrs []slog.Attr) []slog.Attr {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.attr(a)
	}
	return clean
}

// attr scrubs one attribute. Numbers and times can hold no secret.
func (h scrubLog) attr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		return slog.String(a.Key, h.b.Text(v.String()))
	case slog.KindGroup:
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(h.attrs(v.Group())...)}
	case slog.KindAny:
		return slog.String(a.Key, h.b.Text(fmt.Sprintf("%+v", v.Any())))
	}
	return a
}
