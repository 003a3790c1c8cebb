package interceptor

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// A layer gets a span for what it does itself, on either side, where that
// takes over a millisecond; what lies further in is not its own.
func TestLayerSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spans := tracetest.NewInMemoryExporter()
		tel, err := NewTelemetry(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithIDGenerator(SpanIDs{})), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		busy := func(before, after time.Duration) Layer {
			return func(next Handler) Handler {
				return func(ctx context.Context, c *Call) (*Result, error) {
					time.Sleep(before)
					defer time.Sleep(after)
					return next(ctx, c)
				}
			}
		}
		chain := NewChain(func(context.Context, *Call) {}, tel.Calls(), tel.Measure("outer", busy(2*time.Millisecond, 0)), tel.Measure("inner", busy(0, 3*time.Millisecond)))
		if _, err := chain(context.Background(), &Call{Target: Target{Method: "ping"}}, func(context.Context, *Call) (*Result, error) {
			time.Sleep(time.Second)
			return &Result{Body: []byte(`{}`)}, nil
		}); err != nil {
			t.Fatal(err)
		}
		var got []string
		call := spans.GetSpans()[len(spans.GetSpans())-1]
		for _, s := range spans.GetSpans() {
			got = append(got, fmt.Sprint(s.Name, " ", s.EndTime.Sub(s.StartTime)))
			if s.Name != "ping" && s.Parent.SpanID() != call.SpanContext.SpanID() {
				t.Errorf("span %s is not a child of the call's", s.Name)
			}
		}
		if diff := cmp.Diff([]string{"inner response 3ms", "outer request 2ms", "ping 1.005s"}, got); diff != "" {
			t.Errorf("spans (-want +got):\n%s", diff)
		}
	})
}

// No client and no server can make a metric grow by inventing names.
func TestLabelsAreBounded(t *testing.T) {
	tel, err := NewTelemetry(nil, nil, func(name string) bool { return name == "branch_create" })
	if err != nil {
		t.Fatal(err)
	}
	call := func(server, name string) *Call {
		return &Call{Target: Target{Method: "tools/call", Server: server, Name: name}}
	}
	for _, c := range []struct {
		what string
		call *Call
		err  error
		want string
	}{
		{"one of ours", call("", "branch_create"), nil, "branch_create"},
		{"invented", call("", "branch_crate"), errors.New("unknown"), other},
		{"of an upstream that never answered", call("up", "maybe"), &Refusal{Reason: "upstream"}, other},
		{"answered", call("up", "echo"), nil, "echo"},
		{"known, and down now", call("up", "echo"), &Refusal{Reason: "upstream"}, "echo"},
		{"not a tool", &Call{Target: Target{Method: "resources/read", Server: "up", Name: "file:///secret"}}, nil, ""},
	} {
		if got := tel.toolLabel(c.call, c.err); got != c.want {
			t.Errorf("%s: label = %q, want %q", c.what, got, c.want)
		}
	}
	names := map[string]bool{}
	for i := range 2 * maxToolLabels {
		names[tel.toolLabel(call("up", fmt.Sprint("tool", i)), nil)] = true
	}
	if len(names) != maxToolLabels {
		t.Errorf("%d tools are told apart, want %d with %s", len(names), maxToolLabels, other)
	}
	if got := methodLabel("foo/bar"); got != other {
		t.Errorf("methodLabel(foo/bar) = %q, want %q", got, other)
	}
	for code, want := range map[string]string{`{"code":-32602}`: "-32602", `{"code":123456}`: other, `{"code":"x"}`: other, `{}`: other} {
		if got := errorType(&Result{Error: []byte(code)}, nil); got != want {
			t.Errorf("errorType(%s) = %q, want %q", code, got, want)
		}
	}
}

// A panic passes with the span ended and nothing left in flight.
func TestCallSpanEndsWithAPanic(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tel, err := NewTelemetry(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := tel.Calls()(func(context.Context, *Call) (*Result, error) { panic("x") })
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = h(context.Background(), &Call{Target: Target{Method: "ping"}})
	}()
	if got := spans.GetSpans(); len(got) != 1 || got[0].Status.Code.String() != "Error" {
		t.Errorf("spans = %v, want one, failed", got)
	}
}
