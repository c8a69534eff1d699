package csiservice

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/fleet"
)

const (
	// askTimeout bounds a question to all nodes.
	askTimeout = 15 * time.Second
	// askAtOnce is how many of them are asked at once.
	askAtOnce = 64
)

// connected returns the nodes that can be asked, sorted.
func (s *Service) connected() []string {
	var out []string
	for _, view := range s.Fleet.Views() {
		if view.Connected {
			out = append(out, view.Node)
		}
	}
	slices.Sort(out)
	return out
}

// askAll asks every connected node for something that at most one of them has.
// It returns the zero values when none has it, and an error when one could not
// say, or several say they have it: then it is not known which one has it.
func askAll[T any](ctx context.Context, s *Service, ask func(ctx context.Context, node string) (*T, error)) (node string, found *T, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(askAtOnce)
	var mu sync.Mutex
	var holders []string
	for _, n := range s.connected() {
		group.Go(func() error {
			got, err := ask(ctx, n)
			switch {
			case status.Code(err) == codes.NotFound:
				return nil
			case err != nil:
				return onNode(n, err)
			}
			mu.Lock()
			defer mu.Unlock()
			node, found = n, got
			holders = append(holders, n)
			return nil
		})
	}
	err = group.Wait()
	if len(holders) > 1 {
		return "", nil, ambiguous(holders)
	}
	if found != nil {
		return node, found, nil
	}
	return "", nil, err
}

// ambiguous refuses to choose between nodes that all claim to have something.
func ambiguous(nodes []string) error {
	slices.Sort(nodes)
	return fail(codes.FailedPrecondition, "several nodes report it, and the cluster does not say which of them has it: %s", strings.Join(nodes, ", "))
}

// locate finds a volume: by what the cluster knows, by the nodes' reports, and at
// last by asking every node. What the cluster knows comes first because any node can
// report any id. Not finding it is a NotFound, unless it may be on a node that
// cannot be asked, which is Unavailable.
func (s *Service) locate(ctx context.Context, id string) (string, *lvmdv1.Volume, error) {
	if id == "" {
		return "", nil, invalid("volume_id", "a value is required")
	}
	if node, ok := s.NodeOfVolume(id); ok {
		if view, known := s.Fleet.View(node); known && view.Volumes[id] != nil {
			return node, view.Volumes[id], nil
		}
		vol, err := s.Fleet.GetVolumeByID(ctx, node, id)
		if !fleet.IsNotConnected(err) {
			return node, vol, onNode(node, err)
		}
		gone, goneErr := s.NodeGone(ctx, node)
		switch {
		case goneErr != nil:
			return "", nil, goneErr
		case gone:
			return "", nil, fail(codes.NotFound, "volume %s was on node %s, which is not in the cluster any more, or out of service", id, node)
		}
		return "", nil, onNode(node, err)
	}
	if node, vol, err := s.reported(id); err != nil || vol != nil {
		return node, vol, err
	}
	node, vol, err := askAll(ctx, s, func(ctx context.Context, node string) (*lvmdv1.Volume, error) {
		return s.Fleet.GetVolumeByID(ctx, node, id)
	})
	if err != nil || vol != nil {
		return node, vol, err
	}
	if absent := s.AbsentNodes(); len(absent) > 0 {
		return "", nil, fail(codes.Unavailable, "no connected node has volume %s; these cannot be asked: %s", id, strings.Join(absent, ", "))
	}
	return "", nil, fail(codes.NotFound, "no node has volume %s", id)
}

// reported returns the node that reports a volume, the zero values when none does,
// and an error when several do.
func (s *Service) reported(id string) (node string, vol *lvmdv1.Volume, err error) {
	reports := s.Fleet.ReportsOf(id)
	if len(reports) > 1 {
		return "", nil, ambiguous(slices.Collect(maps.Keys(reports)))
	}
	for node, vol = range reports {
		return node, vol, nil
	}
	return "", nil, nil
}

func isNotFound(err error) bool { return status.Code(Status(err)) == codes.NotFound }

// reportTimeout is how long a call waits for the node's report of what it did,
// and reportLook how often it looks.
const (
	reportTimeout = 2 * time.Second
	reportLook    = 2 * time.Millisecond
)

// awaitReport waits, for a while, until a connected node's report has a volume
// or has it no more, so that the caller that made or deleted it finds it so in a list.
func (s *Service) awaitReport(ctx context.Context, node, id string, there bool) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	look := time.NewTicker(reportLook)
	defer look.Stop()
	for {
		view, ok := s.Fleet.View(node)
		if !ok || !view.Connected {
			return
		}
		if _, is := view.Volumes[id]; is == there {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}
