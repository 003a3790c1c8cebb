package gosdk_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/interceptor/gosdk"
)

func readLog(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
	text := "login with api token ghp_x7Kd9QmZ2bx7Kd9QmZ2bx7Kd9QmZ2bx7Kd9Q\n" + strings.Repeat("GET /health 200\n", 20000)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
}

func serve(ctx context.Context, transport mcp.Transport) error {
	fg, err := gosdk.New(gosdk.Options{})
	if err != nil {
		return err
	}
	defer fg.Close()

	server := mcp.NewServer(&mcp.Implementation{Name: "logs", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "read_log", Description: "Reads the log."}, readLog)

	server.AddReceivingMiddleware(fg.Receiving())
	server.AddSendingMiddleware(fg.Sending())
	fg.AddTools(server)
	return server.Run(ctx, transport)
}

func serveHTTP(server *mcp.Server) error {
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	return http.ListenAndServe("127.0.0.1:8080", handler)
}

var _ = serveHTTP // docs/embedding.md shows it

// A client of the server reads a log of 100,000 tokens, with a secret in it.
func Example() {
	dir, err := os.MkdirTemp("", "foldgate")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chdir(dir); err != nil { // the state is in .foldgate
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	here, there := mcp.NewInMemoryTransports()
	served := make(chan error)
	go func() { served <- serve(ctx, there) }()
	client, err := mcp.NewClient(&mcp.Implementation{Name: "host", Version: "1.0.0"}, nil).Connect(ctx, here, nil)
	if err != nil {
		log.Fatal(err)
	}
	tools, err := client.ListTools(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, tool := range tools.Tools {
		fmt.Println(tool.Name)
	}
	res, err := client.CallTool(ctx, &mcp.CallToolParams{Name: "read_log"})
	if err != nil {
		log.Fatal(err)
	}
	text := res.Content[0].(*mcp.TextContent).Text
	fmt.Println("a preview:", len(text) < 3000 && strings.Contains(text, "branch_read"))
	fmt.Println("the secret:", strings.Contains(text, "ghp_"), strings.Contains(text, "[REDACTED:github-pat]"))
	_ = client.Close()
	stop()
	<-served
	// Output:
	// branch_create
	// branch_read
	// branch_return
	// branch_run
	// branch_status
	// read_log
	// a preview: true
	// the secret: false true
}

// The code in docs/embedding.md compiles: it is a program, and code of the example. Both have the same serve.
func TestDocumentedCode(t *testing.T) {
	page, err := os.ReadFile("../../docs/embedding.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) < 2 {
		t.Errorf("docs/embedding.md has %d blocks of code, want those for a pipe and for HTTP", len(blocks))
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		code := block
		if strings.HasPrefix(block, "package main\n") {
			program := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(program, []byte(block), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("go", "vet", program).CombinedOutput(); err != nil {
				t.Errorf("the program of docs/embedding.md: %v\n%s", err, out)
			}
			_, code, _ = strings.Cut(block, "\nfunc serve(")
			code, _, _ = strings.Cut("func serve("+code, "\nfunc ")
		}
		if !strings.Contains(string(source), "\n"+code) {
			t.Errorf("docs/embedding.md shows code that no test compiles:\n%s", block)
		}
	}
}
