package engine

import (
	"os"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor"
)

// A chain without telemetry holds exactly the layers, each as it was made.
func TestTelemetryOffIsFree(t *testing.T) {
	some, none := layer{mw: interceptor.Recover(nil)}, layer{} // what is not configured has no middleware
	if n := len((&Engine{}).observed(some, none, some)); n != 2 {
		t.Errorf("a chain of 2 layers has %d middlewares", n)
	}
	if n := len((&Engine{Telemetry: &interceptor.Telemetry{}}).observed(some, none, some)); n != 3 {
		t.Errorf("with telemetry a chain of 2 layers has %d middlewares, want 3", n)
	}
}

func TestWritableNamesRemedy(t *testing.T) {
	if err := writable(&os.PathError{Op: "mkdir", Path: "/x", Err: os.ErrPermission}); !strings.Contains(err.Error(), "set another") {
		t.Errorf("a state directory of somebody else's: %v", err)
	}
}
