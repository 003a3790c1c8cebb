package llm

import (
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/runner"
)

// A model reads why an endpoint gave no answer. The URL of the endpoint, which can be a credential, is not in it.
func TestNoURLInErrors(t *testing.T) {
	for _, api := range []string{config.APIOpenAI, config.APIAnthropic} {
		m := Open(config.LLM{API: api, URL: "http://plain-user:plain-password@127.0.0.1:1/plain-path", Model: "m"})
		_, err := m.Turn(t.Context(), &runner.Request{})
		if err == nil || strings.Contains(err.Error(), "plain-") || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v", api, err)
		}
	}
}
