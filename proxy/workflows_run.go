package proxy

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/workflow"
)

// openFlows makes the workflow layer. Its store is shared by all processes on
// the state directory: a handle is good at each of them.
func (g *Gateway) openFlows() error {
	if len(g.cfg.Workflows) == 0 {
		return nil
	}
	f := newFlows(g.cfg)
	engine, err := workflow.Open(filepath.Join(g.cfg.StatePath(), "workflows.db"), time.Now)
	if err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	f.engine = engine
	if err := engine.Interrupt(g.ctx, g.lostSteps); err != nil {
		return errors.Join(fmt.Errorf("state_dir: %w", err), engine.Close())
	}
	f.layer = &interceptor.Workflows{Engine: engine, Recorder: g.recorder, Boundary: g.boundary, Log: g.log}
	g.flows = f
	return nil
}

// sweepEvery is how often expired workflows are looked for, beside each call
// that opens one.
const sweepEvery = time.Minute

// sweep ends expired workflows, at once and from then on until ctx is done.
func (f *flows) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		f.layer.Sweep(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// middle returns the layer of the chain; nil, which does nothing, without workflows.
func (f *flows) middle() *interceptor.Workflows {
	if f == nil {
		return nil
	}
	return f.layer
}
