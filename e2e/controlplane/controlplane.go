package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/carve-csi/carve/e2e/kube"
	"github.com/carve-csi/carve/e2e/netns"
)

// Options configure a control plane.
type Options struct {
	// Dir is the folder of its state and logs. It is made when missing and must not be
	// used for anything else.
	Dir string
	// Namespace is the network namespace it runs in, with netns.DefaultGateway.
	Namespace netns.Namespace
	// Kube is the path of the binary that kube.Build returned.
	Kube string
	// ClientRate is how many requests per second the controller-manager and the
	// scheduler may each make of the API server; 0 leaves them at their defaults. What
	// Open returns starts them with its own.
	ClientRate int
	// ProxyNode names the node that the proxy of Services takes for its own. Start does
	// not start the proxy, which waits for that node; StartComponent does.
	ProxyNode string
	// FakeNodes means that no kubelet renews its node's heartbeat: nodes are not tainted as
	// unreachable for that.
	FakeNodes bool
	// LimitCritical has the API server refuse Pods of the priority classes system-*-critical
	// in namespaces without a quota for them, as GKE's does.
	LimitCritical bool
	// Progress gets what is waited for. It may be nil.
	Progress io.Writer
}

// ControlPlane is a control plane, running or not. It holds no resources, and its
// methods may be called concurrently save where Start, Stop and their likes change the
// same component.
type ControlPlane struct {
	dir           string
	namespace     netns.Namespace
	kube          string
	clientRate    int
	proxyNode     string
	fakeNodes     bool
	limitCritical bool
	progress      io.Writer
	identities    *identities
}

// Open returns the control plane whose state is in o.Dir, running or not, without
// starting anything. The error is fs.ErrNotExist if none was ever started there.
func Open(o Options) (*ControlPlane, error) {
	if _, err := os.Stat(filepath.Join(o.Dir, adminConfig)); err != nil {
		return nil, fmt.Errorf("open the control plane in %s: %w", o.Dir, err)
	}
	return load(o)
}

// Start starts those components that do not run, and returns when all of them are
// healthy. It may be called again at any time. The components go on after ctx is done
// and after the caller has ended; what was started stays when Start fails, for its logs
// to be read and for Stop to end.
func Start(ctx context.Context, o Options) (*ControlPlane, error) {
	c, err := load(o)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{kube.Etcd, kube.APIServer} {
		if err := c.StartComponent(ctx, name); err != nil {
			return nil, err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, name := range []string{kube.ControllerManager, kube.Scheduler} {
		group.Go(func() error { return c.StartComponent(ctx, name) })
	}
	return c, group.Wait()
}

// load makes the folder complete: keys, certificates and the components' configuration.
func load(o Options) (*ControlPlane, error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	// Not the working directory of the components.
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("find the folder %s: %w", o.Dir, err)
	}
	c := &ControlPlane{
		dir: dir, namespace: o.Namespace, kube: o.Kube, clientRate: o.ClientRate, proxyNode: o.ProxyNode,
		fakeNodes: o.FakeNodes, limitCritical: o.LimitCritical, progress: o.Progress,
	}
	if err := os.MkdirAll(filepath.Join(dir, logFolder), 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of logs: %w", err)
	}
	c.identities, err = loadIdentities(filepath.Join(dir, pkiFolder))
	if err != nil {
		return nil, err
	}
	return c, c.writeConfiguration()
}

// writeConfiguration writes the files that components read. Those with certificates are
// left as they are when they exist; the administrator's comes last and shows that all is
// there.
func (c *ControlPlane) writeConfiguration() error {
	if err := writeFile(filepath.Join(c.dir, etcdConfig), c.etcdConfiguration()); err != nil {
		return err
	}
	if c.limitCritical {
		if err := writeFile(filepath.Join(c.dir, admissionConfig), []byte(limitedCritical)); err != nil {
			return err
		}
	}
	for _, one := range []struct{ file, pair string }{
		{managerConfig, managerPair},
		{schedulerConfig, schedulerPair},
		{proxyConfig, proxyPair},
		{adminConfig, adminPair},
	} {
		path := filepath.Join(c.dir, one.file)
		_, err := os.Stat(path)
		if err == nil {
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look for a kubeconfig: %w", err)
		}
		content, err := c.identities.kubeconfig(c.identities.pairs[one.pair])
		if err != nil {
			return err
		}
		if err := writeFile(path, content); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends all components, the API server after those that use it, and returns when
// they are gone. What does not run is no error. The state stays: Start goes on with it.
func (c *ControlPlane) Stop(ctx context.Context) error {
	group, together := errgroup.WithContext(ctx)
	for _, name := range []string{kube.ControllerManager, kube.Scheduler, kube.Proxy} {
		group.Go(func() error { return c.StopComponent(together, name) })
	}
	return errors.Join(
		group.Wait(),
		c.StopComponent(ctx, kube.APIServer),
		c.StopComponent(ctx, kube.Etcd),
	)
}
