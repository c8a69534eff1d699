package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// fleetAddress is where the fake nodes take requests.
const fleetAddress = "127.0.0.1:9900"

// startFleet starts the fake nodes, and waits until all are known and published.
func (c *cluster) startFleet(ctx context.Context, tokens string) error {
	begin := time.Now()
	if _, err := c.startNodes("fakefleet", tokens, "--control", fleetAddress, "--volumes", fmt.Sprint(c.volumes), "--full", fmt.Sprint(c.full)); err != nil {
		return err
	}
	if err := c.allConnected(ctx); err != nil {
		return err
	}
	err := carve.Until(ctx, c.fleetTimeout(), "every node's capacity is published", func(ctx context.Context) error {
		list, err := c.client.StorageV1().CSIStorageCapacities(carveNamespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if want := c.nodes * c.classes; err == nil && len(list.Items) < want {
			err = fmt.Errorf("%d of %d", len(list.Items), want)
		}
		return err
	})
	if err != nil {
		return err
	}
	c.connecting = time.Since(begin)
	return c.bindHeld(ctx)
}

// startNodes starts a process that is the nodes whose tokens are in a folder.
func (c *cluster) startNodes(name, tokens string, more ...string) (*process, error) {
	var uplinks []string
	for replica := range max(1, c.replicas) {
		uplinks = append(uplinks, uplinkAddress(replica))
	}
	return c.start(name, c.programs.fakefleet, append(more, "--controller", strings.Join(uplinks, ","), "--server-name", uplinkHost, "--controller-ca", c.uplinkCA,
		"--tokens", tokens, "--classes", fmt.Sprint(c.classes), "--bytes", fmt.Sprint(c.nodeBytes), "--create-time", c.createTime.String())...)
}

// fleetTimeout bounds the time in which all nodes connect.
func (c *cluster) fleetTimeout() time.Duration {
	return waitTimeout + time.Duration(c.nodes)*100*time.Millisecond
}

// allConnected waits until every replica knows every node.
func (c *cluster) allConnected(ctx context.Context) error {
	for replica := range max(1, c.replicas) {
		err := carve.Until(ctx, c.fleetTimeout(), fmt.Sprintf("every node is connected to replica %d", replica), func(ctx context.Context) error {
			connected, err := c.metric(ctx, replica, "carve_controller_connected_nodes")
			if err == nil && int(connected) < c.nodes {
				err = fmt.Errorf("%v of %d", connected, c.nodes)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// askFleet makes a request of the fake nodes, and decodes the answer into result.
func (c *cluster) askFleet(ctx context.Context, method, path string, result any) error {
	body, err := c.request(ctx, method, "http://"+fleetAddress+path)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(result); err != nil {
		return fmt.Errorf("read the fake nodes' answer to %s: %w", path, err)
	}
	return nil
}
