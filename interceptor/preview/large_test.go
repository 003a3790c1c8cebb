package preview

import (
	"strings"
	"testing"
	"time"
)

// As many large texts are read at once as there are processors; others wait.
func TestLargeTextsWait(t *testing.T) {
	for range cap(reading) {
		reading <- struct{}{}
	}
	source := func(size int) Source {
		return Source{Text: strings.Repeat("1,", size/2) + "1", Tokens: size, Handle: "res_0123456789abcdefghjkmnpqrs"}
	}
	count := func(s string) int { return len(s) / 4 }
	made := make(chan bool, 1)
	go func() {
		_, ok := Make(source(large), 300, count)
		made <- ok
	}()
	if _, ok := Make(source(large/2), 300, count); !ok {
		t.Error("a small text has no preview")
	}
	select {
	case <-made:
		t.Fatal("a large text did not wait")
	case <-time.After(300 * time.Millisecond): // without waiting it takes a tenth of that
	}
	for range cap(reading) {
		<-reading
	}
	if !<-made || len(reading) != 0 {
		t.Errorf("%d texts are still counted", len(reading))
	}
}
