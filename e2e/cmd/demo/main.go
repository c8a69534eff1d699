// Command demo shows a volume from its creation to its deletion on a real cluster: it installs
// Carve from deploy/, runs a Pod with a generic ephemeral volume, shows every
// object and device that belongs to it, deletes the Pod and shows that all of
// it is gone. It fails when any step does not do as expected. The cluster stays up.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/cluster"
)

func main() {
	name := flag.String("cluster", "demo", "name of the cluster")
	nodes := flag.Int("nodes", 2, "number of nodes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *nodes); err != nil {
		fmt.Fprintf(os.Stderr, "\n✗ %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name string, nodes int) error {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Minute)
	defer cancel()
	started := time.Now()
	title("1. A cluster: upstream Kubernetes, %d nodes, each with a kernel and disks of its own", nodes)
	c, err := cluster.Up(ctx, cluster.Options{Name: name, Nodes: nodes, Progress: os.Stdout})
	if err != nil {
		return err
	}
	client, err := carve.NewClient(c)
	if err != nil {
		return err
	}
	title("2. Install Carve: what deploy/ has, with the image of this tree: kubectl apply -k e2e/deploy")
	if err := client.Install(ctx, os.Stdout); err != nil {
		client.Diagnose(context.WithoutCancel(ctx), os.Stdout)
		return err
	}
	s := &scenario{client: client, nodes: c.NodeNames()}
	if err := s.run(ctx); err != nil {
		client.Diagnose(context.WithoutCancel(ctx), os.Stdout)
		return err
	}
	fmt.Printf(`
✓ Every step did as expected, in %v.

The cluster is still up. Play with it:

  cd e2e
  go run ./cmd/cluster kubectl --name %[2]s get nodes,pods,csistoragecapacities -A
  go run ./cmd/cluster kubectl --name %[2]s apply -f ../deploy/examples/statefulset.yaml
  go run ./cmd/cluster exec --name %[2]s %[3]s lvs -o +lv_tags

Remove it, from the same folder, with: make -C .. demo-down DEMO=%[2]s
`, time.Since(started).Round(time.Second), name, s.nodes[0])
	return nil
}
