package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
)

const (
	// pace is the number of nodes per second that change or restart, one after the other.
	pace        = 20
	mostChanged = 200
)

// volume is an initial volume of a node. Group has the form NAME/UUID.
type volume struct {
	Node  string `json:"node"`
	Name  string `json:"name"`
	Claim string `json:"claim"`
	ID    string `json:"id"`
	Class string `json:"class"`
	Group string `json:"group"`
}

// serveControl serves requests until ctx is done:
//
//	GET /held      returns the initial volumes of the nodes
//	POST /change   takes an extent from up to mostChanged nodes, one after the other, and returns the time of each change
//	POST /restart  restarts all nodes, one after the other, and returns when all have begun to reconnect
func serveControl(ctx context.Context, o options, nodes []*node) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /held", answer(func(context.Context) (any, error) { return held(nodes), nil }))
	mux.HandleFunc("POST /change", answer(func(ctx context.Context) (any, error) {
		changed := map[string]time.Time{}
		return changed, inTurn(ctx, nodes[:min(mostChanged, len(nodes))], func(n *node) error {
			changed[n.lvmd.Node()] = time.Now()
			n.lvmd.Resize(defaultClass, o.bytes-lvmdfake.AllocationUnit)
			return nil
		})
	}))
	mux.HandleFunc("POST /restart", answer(func(ctx context.Context) (any, error) {
		var restarted sync.WaitGroup
		err := inTurn(ctx, nodes, func(n *node) error {
			restarted.Add(1)
			select {
			case n.restarts <- &restarted:
				return nil
			case <-ctx.Done():
				restarted.Done()
				return ctx.Err()
			}
		})
		restarted.Wait()
		return nil, err
	}))
	server := &http.Server{Addr: o.control, Handler: mux, ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("control: %w", err)
	}
	return nil
}

func answer(do func(context.Context) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		result, err := do(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(result) // fails when the caller is gone
	}
}

// inTurn calls do with each node, pace nodes per second.
func inTurn(ctx context.Context, nodes []*node, do func(*node) error) error {
	tick := time.NewTicker(time.Second / pace)
	defer tick.Stop()
	for _, n := range nodes {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := do(n); err != nil {
			return err
		}
	}
	return nil
}

// held returns the initial volumes, without those that only fill a node.
func held(nodes []*node) []volume {
	var all []volume
	for _, n := range nodes {
		for name, v := range n.lvmd.Volumes() {
			if claim := v.GetOwner().GetClaimName(); claim != "" {
				all = append(all, volume{Node: n.lvmd.Node(), Name: name, Claim: claim, ID: v.GetId(), Class: v.GetDeviceClass(), Group: v.GetVgName() + "/" + v.GetVgUuid()})
			}
		}
	}
	return all
}
