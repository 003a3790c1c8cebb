package interceptor

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Recover turns a panic further in into an error, logged with its stack, so
// that one bad message never takes the gateway down. It is installed inside
// Trace: a call that panicked is recorded like any other.
func Recover(log *slog.Logger) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (res *Result, err error) {
			defer func() {
				if p := recover(); p != nil {
					log.Error("panic in a call", "method", c.Target.Method, "server", c.Target.Server, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
					res, err = nil, fmt.Errorf("internal error while handling %s; the gateway's log has the details", c.Target.Method)
				}
			}()
			return next(ctx, c)
		}
	}
}
