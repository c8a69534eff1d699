package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// drainTime is how long the load's last volumes may take to go.
const drainTime = 15 * time.Minute

// churnLive is how long a Pod lives that comes and goes.
const churnLive = 20 * time.Second

// churnPlan is a steady load of Pods with a volume each.
type churnPlan struct {
	pace float64       // Pods per second
	time time.Duration // for which they come
	live time.Duration // after which each is deleted; zero keeps them to the end
	// setting has the rate of Kubernetes' own clients.
	setting
}

// churn is what such a load showed.
type churn struct {
	churnPlan
	nodes    int
	pods     int
	bound    []time.Duration    // from selected node to bound claim, sorted
	halves   [2][]time.Duration // the same of each half of the load
	drain    time.Duration      // from the last Pod's deletion to the last PersistentVolume gone
	warnings int                // the PV controller's ProvisioningFailed and ClaimLost Events
}

// churning is a load under way. mu guards what follows it.
type churning struct {
	*cluster
	namespace string
	begin     time.Time

	mu       sync.Mutex
	result   *churn
	selected map[string]time.Time
	bound    map[string]bool
}

// churn creates Pods at a rate, deletes each when it has lived, and follows their claims.
func (c *cluster) churn(ctx context.Context, p churnPlan, bytes int64) (*churn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.time+p.live+drainTime+waitTimeout)
	defer cancel()
	namespace, err := c.makeNamespace(ctx, "churn-")
	if err != nil {
		return nil, err
	}
	l := &churning{
		cluster: c, namespace: namespace, begin: time.Now(), result: &churn{churnPlan: p, nodes: c.nodes, pods: int(p.pace * p.time.Seconds())},
		selected: map[string]time.Time{}, bound: map[string]bool{},
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	seen := make(chan any, 1000)
	if err := c.follow(watching, namespace, seen); err != nil {
		return nil, err
	}
	go func() {
		for {
			select {
			case object := <-seen:
				if claim, ok := object.(*corev1.PersistentVolumeClaim); ok {
					l.note(claim)
				}
			case <-watching.Done():
				return
			}
		}
	}()
	go l.report(watching)
	if err := l.load(ctx, bytes); err != nil {
		return nil, err
	}
	return l.finish(ctx)
}

// load creates and deletes the Pods.
func (l *churning) load(ctx context.Context, bytes int64) error {
	var deletions sync.WaitGroup
	defer deletions.Wait()
	failures := make(chan error, l.result.pods)
	for i := range l.result.pods {
		due := l.begin.Add(time.Duration(float64(i) / l.result.pace * float64(time.Second)))
		select {
		case <-time.After(time.Until(due)):
		case err := <-failures:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := l.createPod(ctx, l.namespace, i, bytes); err != nil {
			return err
		}
		if l.result.live == 0 {
			continue
		}
		deletions.Go(func() {
			select {
			case <-time.After(l.result.live):
			case <-ctx.Done():
				return
			}
			err := l.client.CoreV1().Pods(l.namespace).Delete(ctx, "pod-"+strconv.Itoa(i), metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				failures <- fmt.Errorf("delete a Pod: %w", err)
			}
		})
	}
	deletions.Wait()
	return nil
}

// note follows a claim.
func (l *churning) note(claim *corev1.PersistentVolumeClaim) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if claim.Annotations[selectedNode] == "" {
		delete(l.selected, claim.Name)
	} else if _, known := l.selected[claim.Name]; !known {
		l.selected[claim.Name] = now
	}
	if claim.Status.Phase != corev1.ClaimBound || l.bound[claim.Name] {
		return
	}
	l.bound[claim.Name] = true
	took := now.Sub(l.selected[claim.Name])
	l.result.bound = append(l.result.bound, took)
	half := 0
	if now.Sub(l.begin) > l.result.time/2 {
		half = 1
	}
	l.result.halves[half] = append(l.result.halves[half], took)
}

// finish counts, removes what is left and waits until all volumes are gone.
func (l *churning) finish(ctx context.Context) (*churn, error) {
	r := l.result
	var b burst
	if err := l.countEvents(ctx, l.namespace, &b); err != nil {
		return nil, err
	}
	r.warnings = b.warnings
	if err := l.client.CoreV1().Pods(l.namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return nil, fmt.Errorf("delete the Pods: %w", err)
	}
	begin := time.Now()
	err := l.noVolumes(ctx, drainTime)
	r.drain = time.Since(begin)
	// Claims are bound until the end.
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, times := range [][]time.Duration{r.bound, r.halves[0], r.halves[1]} {
		slices.Sort(times)
	}
	return r, err
}

// report prints how it goes, until ctx is done.
func (l *churning) report(ctx context.Context) {
	for tick := time.Tick(30 * time.Second); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		volumes, err := l.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: ofPods, ResourceVersion: "0"})
		if err != nil {
			continue
		}
		l.mu.Lock()
		last := l.result.bound[max(0, len(l.result.bound)-100):]
		last = slices.Sorted(slices.Values(last))
		fmt.Fprintf(l.progress, "after %v: %d bound, the last 100 after %s (median); %d volumes\n",
			time.Since(l.begin).Round(time.Second), len(l.result.bound), short(quantile(last, 50)), len(volumes.Items))
		l.mu.Unlock()
	}
}

// measureChurn puts each load on a cluster of its own.
func measureChurn(ctx context.Context, p plan, programs *programs, progress io.Writer) ([]*churn, error) {
	var results []*churn
	for _, load := range []churnPlan{
		{pace: p.churnRate, time: time.Minute},
		{pace: p.churnRate, time: p.churnTime, live: churnLive},
		{pace: p.churnRate, time: p.churnTime, live: churnLive, setting: setting{clientRate: highRate}},
	} {
		err := withCluster(ctx, clusterOptions{programs: programs, progress: progress, nodes: p.nodes, nodeBytes: 1 << 40, clientRate: load.clientRate, scheduler: p.scheduler}, func(c *cluster) error {
			fmt.Fprintf(progress, "%v Pods per second for %v, each deleted after %v, Kubernetes' own clients: %s\n", load.pace, load.time, load.live, load.rate())
			result, err := c.churn(ctx, load, 1<<30)
			results = append(results, result)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}
