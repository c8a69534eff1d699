package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// observer notes when it sees what becomes of the Pods of a round.
type observer struct {
	pods, claims int

	mu  sync.Mutex
	was map[string]time.Time // when which Pod was created
}

func newObserver(k kind, pods int) *observer {
	o := &observer{pods: pods, was: map[string]time.Time{}}
	if k.volume {
		o.claims = pods
	}
	return o
}

// created notes that a Pod is about to be created.
func (o *observer) created(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.was[name] = time.Now()
}

func (o *observer) age(name string) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Since(o.was[name])
}

// observe follows both watches until every Pod runs and every claim is bound. Created gets how the creation of
// the Pods ended.
func (o *observer) observe(ctx context.Context, pods, claims watch.Interface, created <-chan error) (*round, error) {
	r := &round{}
	placed, running, bound := map[string]bool{}, map[string]bool{}, map[string]bool{}
	selected := map[string]time.Time{}
	for len(running) < o.pods || len(bound) < o.claims {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d Pods run, %d of %d claims are bound: %w", len(running), o.pods, len(bound), o.claims, ctx.Err())
		case err := <-created:
			if err != nil {
				return nil, err
			}
			created = nil
		case event, open := <-pods.ResultChan():
			if !open {
				return nil, errors.New("the watch on Pods ended")
			}
			p, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			if p.Spec.NodeName != "" && !placed[p.Name] {
				placed[p.Name] = true
				r.placed = append(r.placed, o.age(p.Name))
			}
			if p.Status.Phase == corev1.PodRunning && !running[p.Name] {
				running[p.Name] = true
				r.started = append(r.started, o.age(p.Name))
			}
		case event, open := <-claims.ResultChan():
			if !open {
				return nil, errors.New("the watch on claims ended")
			}
			claim, ok := event.Object.(*corev1.PersistentVolumeClaim)
			if !ok {
				continue
			}
			if _, seen := selected[claim.Name]; !seen && claim.Annotations[selectedNode] != "" {
				selected[claim.Name] = time.Now()
			}
			if claim.Status.Phase == corev1.ClaimBound && !bound[claim.Name] {
				bound[claim.Name] = true
				r.bound = append(r.bound, time.Since(selected[claim.Name]))
			}
		}
	}
	return r, nil
}
