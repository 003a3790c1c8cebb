package interceptor_test

import (
	"context"
	"fmt"

	"github.com/foldgate/foldgate/interceptor"
)

// A chain of two layers around the handler that answers the call.
func Example() {
	layer := func(name string) interceptor.Layer {
		return func(next interceptor.Handler) interceptor.Handler {
			return func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
				fmt.Println(name, "request", c.Target.Method)
				res, err := next(ctx, c)
				fmt.Println(name, "response")
				return res, err
			}
		}
	}
	locate := func(_ context.Context, c *interceptor.Call) { c.Attribution.Source = interceptor.SourceMain }
	end := func(context.Context, *interceptor.Call) (*interceptor.Result, error) {
		return &interceptor.Result{Body: []byte(`{}`)}, nil
	}
	chain := interceptor.NewChain(locate, layer("first"), layer("second"))
	res, err := chain(context.Background(), &interceptor.Call{Target: interceptor.Target{Method: "ping"}}, end)
	fmt.Println(string(res.Body), err)
	// Output:
	// first request ping
	// second request ping
	// second response
	// first response
	// {} <nil>
}
