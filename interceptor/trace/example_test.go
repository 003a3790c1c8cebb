package trace_test

import (
	"context"
	"fmt"
	"os"

	"github.com/foldgate/foldgate/interceptor/trace"
)

func Example() {
	dir, err := os.MkdirTemp("", "trace")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	j, err := trace.Open(dir, trace.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	req := &trace.Record{From: "host:h#s1", To: []string{"upstream:files"}, Kind: trace.KindRequest + "tools/call", Context: "br_1"}
	if err := j.Append(req); err != nil { // refuse the call: nothing has happened yet
		fmt.Println(err)
	}
	resp := &trace.Record{Kind: trace.KindResponse + "tools/call", CorrelationID: trace.IDs{req.ID}, Context: req.Context}
	if err := j.Append(resp); err != nil {
		fmt.Println(err)
	}
	if err := j.Close(); err != nil {
		fmt.Println(err)
	}

	report, err := trace.Verify(context.Background(), dir, trace.VerifyOptions{})
	fmt.Println(report.Records, report.OK(), err)
	// Output: 3 true <nil>
}
