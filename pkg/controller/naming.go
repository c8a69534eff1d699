package controller

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
)

const (
	// namingTimeout bounds how long a node has to take the addresses, and namedAtOnce to how many nodes
	// they are named beside each other.
	namingTimeout = 2 * time.Second
	namedAtOnce   = 128
)

// naming names the addresses of the controller's replicas to the nodes, so that these need not ask DNS for new ones
// again and again. A node is called when it connects, which it also does with each new token, and when an address is
// new. Each replica does it, whether it leads or not. Its methods may be called concurrently.
type naming struct {
	client    kubernetes.Interface
	namespace string
	// service is the Service whose name the nodes look up.
	service string
	fleet   *fleet.Fleet
	log     *slog.Logger
	// changed has an element when due may have one.
	changed chan struct{}

	mu sync.Mutex
	// addresses are those of the Service, sorted.
	addresses []string
	// due are the nodes to which the addresses are to be named.
	due map[string]struct{}
}

func newNaming(o Options, nodes *fleet.Fleet) *naming {
	return &naming{client: o.Client, namespace: o.Namespace, service: names.UplinkService, fleet: nodes, log: o.Log,
		changed: make(chan struct{}, 1), due: map[string]struct{}{}}
}

// connected has the addresses named to a node that the fleet has just taken over.
func (n *naming) connected(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.add(node)
}

// set takes in which addresses the Service has. One that is gone is nothing to name: nodes ask DNS for that.
func (n *naming) set(addresses []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	appeared := slices.ContainsFunc(addresses, func(a string) bool { return !slices.Contains(n.addresses, a) })
	n.addresses = addresses
	if !appeared {
		return
	}
	// With the lock held: a node that connects later comes by connected.
	for _, view := range n.fleet.Views() {
		n.add(view.Node) // one that has lost its uplink is not called
	}
}

// add makes a node due. The caller holds n.mu.
func (n *naming) add(node string) {
	n.due[node] = struct{}{}
	select {
	case n.changed <- struct{}{}:
	default: // run looks
	}
}

// take returns the nodes that are due, and what to name to them.
func (n *naming) take() (nodes map[string]struct{}, addresses []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	nodes, n.due = n.due, map[string]struct{}{}
	if len(n.addresses) == 0 {
		return nil, nil // set adds all nodes when there are any
	}
	return nodes, n.addresses
}

// run watches the addresses and names them until ctx is done. Without the right to watch them, it names none.
func (n *naming) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	watched := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithNamespace(n.namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelServiceName + "=" + n.service }))
	defer watched.Shutdown()
	defer cancel()
	informer := watched.Discovery().V1().EndpointSlices().TypedInformer()
	change := func(*discoveryv1.EndpointSlice) { n.set(addressesIn(cluster.List(informer))) }
	if _, err := cluster.Watch(cluster.OnChange(informer, change, change)); err != nil {
		return err
	}
	watched.Start(ctx.Done())
	var calls errgroup.Group
	calls.SetLimit(namedAtOnce)
	for {
		select {
		case <-ctx.Done():
			return calls.Wait()
		case <-n.changed:
		}
		nodes, addresses := n.take()
		for node := range nodes {
			calls.Go(func() error {
				callCtx, cancel := context.WithTimeout(ctx, namingTimeout)
				defer cancel()
				if err := n.fleet.SetControllers(callCtx, node, addresses); err != nil { // an earlier lvmd does not know the call
					n.log.Debug("addresses of replicas could not be named to a node, which finds them in DNS", "node", node, "error", err)
				}
				return nil
			})
		}
	}
}

// addressesIn are the addresses that DNS has for the Service with these slices, sorted.
func addressesIn(all []*discoveryv1.EndpointSlice) []string {
	var addresses []string
	for _, slice := range all {
		if slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if ptr.Deref(endpoint.Conditions.Ready, true) { // also of a replica that is not ready: publishNotReadyAddresses
				addresses = append(addresses, endpoint.Addresses...)
			}
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}
