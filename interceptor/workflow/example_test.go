package workflow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/foldgate/foldgate/interceptor/workflow"
)

func Example() {
	rules, faults := workflow.Compile([]workflow.Spec{{
		Name: "orders", TTL: time.Hour, Evidence: []workflow.Evidence{workflow.Explicit},
		Tools: []workflow.ToolSpec{
			{Role: workflow.RoleOpen, Server: "shop", Tool: "find"},
			{Role: workflow.RoleLink, Server: "shop", Tool: "buy"},
		},
	}})
	if len(faults) > 0 {
		log.Fatal(faults)
	}
	dir, err := os.MkdirTemp("", "workflow")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	e, err := workflow.Open(filepath.Join(dir, "workflows.db"), time.Now, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()

	ctx := context.Background()
	call := func(tool, id string) *workflow.Step {
		step, err := e.Plan(ctx, workflow.Request{
			Rule: rules.Find("shop", tool), Principal: "ada", Session: "s1", ID: id, Arguments: json.RawMessage(`{}`),
		})
		if err != nil {
			log.Fatal(err)
		}
		if err := e.Begin(ctx, step, "request record", "step record"); err != nil {
			log.Fatal(err)
		}
		if err := e.End(ctx, step, workflow.Outcome{Status: workflow.Completed, Result: json.RawMessage(`{}`)}); err != nil {
			log.Fatal(err)
		}
		return step
	}
	find := call("find", "")
	buy := call("buy", find.ID)
	fmt.Println(find.Name, find.Evidence, find.Attempt)
	fmt.Println(buy.Name, buy.Evidence, buy.Path == find.ID+"/"+buy.ID, buy.Status)
	// Output:
	// find none 1
	// buy explicit true completed
}
