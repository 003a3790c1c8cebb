package proxy

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/foldgate/foldgate/internal/redisdb"
	"github.com/foldgate/foldgate/internal/version"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/replicas"
	"github.com/foldgate/foldgate/proxy/server"
)

// replicaGrace is how long calls in flight may take after replicas.drain_seconds. On a gateway without
// replicas it is shutdownWait.
const replicaGrace = 30 * time.Second

// openReplicas returns the replicas that the gateway is one of, and where they reach it; nil if it is not
// one of several.
func (g *Gateway) openReplicas(ctx context.Context) (*replicas.Set, net.Listener, error) {
	if g.Replica == "" {
		return nil, nil, nil
	}
	c := &g.Start
	ln, err := server.Listen(ctx, c.Replicas.Listen)
	if err != nil {
		return nil, nil, err
	}
	db, err := redisdb.Open(string(c.Store.URL), c.Store.Prefix)
	if err != nil {
		return nil, nil, errors.Join(err, ln.Close())
	}
	set, err := replicas.New(replicas.Options{
		Name: g.Replica, Address: cmp.Or(c.Replicas.Address, ln.Addr().String()), Key: string(c.Replicas.Key), DB: db, Config: c.Sum, Version: version.String(), Log: g.Log,
	})
	if err != nil {
		return nil, nil, errors.Join(err, db.Close(), ln.Close())
	}
	return set, ln, nil
}

// drained returns a context that ends replicas.drain_seconds after ctx, when ln has accepted the last
// connection. Meanwhile other replicas and load balancers learn that this one stops.
func (g *Gateway) drained(ctx context.Context, set *replicas.Set, ln net.Listener) context.Context {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.wg.Go(func() {
		defer cancel()
		select {
		case <-ctx.Done():
		case <-g.lifetime.Done():
			return
		}
		g.Log.Info("stopping: new sessions go to other replicas", "seconds", g.Start.Replicas.DrainSeconds)
		set.Drain()
		select {
		case <-time.After(time.Duration(g.Start.Replicas.DrainSeconds) * time.Second):
			server.TurnAway(ln)
		case <-g.lifetime.Done():
		}
	})
	return out
}

func (g *Gateway) leave(set *replicas.Set) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownWait)
	defer cancel()
	set.Close(ctx)
}

// ReplicaReport is one replica of a configuration, as the registry has it.
type ReplicaReport struct {
	replicas.Member
	Err error // why requests can't be passed on to it, though it is up
}

// Replicas returns the replicas that the registry of a configuration has, and tries to reach those that are
// up. It registers nothing.
func Replicas(ctx context.Context, cfg config.Config, log *slog.Logger) ([]ReplicaReport, error) {
	db, err := redisdb.Open(string(cfg.Store.URL), cfg.Store.Prefix)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	set, err := replicas.New(replicas.Options{Key: string(cfg.Replicas.Key), DB: db, Log: log})
	if err != nil {
		return nil, err
	}
	members, err := set.Look(ctx)
	all := make([]ReplicaReport, len(members))
	for i, m := range members {
		if all[i].Member = m; m.State == replicas.Up || m.State == replicas.Draining {
			all[i].Err = set.Try(ctx, m)
		}
	}
	return all, err
}
