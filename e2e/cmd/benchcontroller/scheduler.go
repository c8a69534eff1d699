package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/kube"
)

// Ways in which Pods get their nodes, beside kube-scheduler alone: kube-scheduler that asks the extender, which
// compares capacity for it, and a kube-scheduler that is built with the plugin.
const (
	withExtender = "extender"
	withPlugin   = "plugin"
)

const (
	extenderHost = "carve-extender.carve-system.svc"
	// pluginProfile is the profile of the plugin's example.
	pluginProfile = "carve"
)

// extenderAddress is where a replica of the controller listens as an extender.
func extenderAddress(replica int) string { return fmt.Sprintf("127.0.0.%d:9444", 1+replica) }

// extenderArguments are those of a replica that is an extender.
func (c *cluster) extenderArguments(replica int) []string {
	if c.scheduler != withExtender {
		return nil
	}
	return []string{
		"--extender-listen=" + extenderAddress(replica), "--extender-checks-capacity",
		"--extender-cert-file=" + c.extenderFile("tls.crt"), "--extender-key-file=" + c.extenderFile("tls.key"),
		"--extender-client-ca-file=" + c.extenderFile("ca.crt"),
	}
}

func (c *cluster) extenderFile(name string) string { return filepath.Join(c.dir, "extender-"+name) }

// writeExtenderFiles writes what an extender serves with.
func (c *cluster) writeExtenderFiles() error {
	if c.scheduler != withExtender {
		return nil
	}
	files, err := c.plane.ExtenderSecret(extenderHost)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(c.extenderFile(name), content, 0o600); err != nil {
			return fmt.Errorf("write the extender's files: %w", err)
		}
	}
	return nil
}

// useScheduler has Pods get their nodes in the way that is measured.
func (c *cluster) useScheduler(ctx context.Context) error {
	switch c.scheduler {
	case withExtender:
		example, err := c.example("kube-scheduler.yaml")
		if err != nil {
			return err
		}
		patch := []byte(`{"spec":{"storageCapacity":false}}`)
		if _, err := c.client.StorageV1().CSIDrivers().Patch(ctx, driver, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("leave capacity to the extender: %w", err)
		}
		return c.plane.UseExtender(ctx, example, "https://"+extenderAddress(0))
	case withPlugin:
		return c.startPluginScheduler(ctx)
	}
	return nil
}

// schedulerName is what Pods name; empty for the default.
func (c *cluster) schedulerName() string {
	if c.scheduler == withPlugin {
		return pluginProfile
	}
	return ""
}

func (c *cluster) example(name string) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(c.programs.root, "deploy", "examples", name))
	if err != nil {
		return nil, fmt.Errorf("read an example: %w", err)
	}
	return content, nil
}

// startPluginScheduler puts a kube-scheduler that has the plugin in the place of the cluster's.
func (c *cluster) startPluginScheduler(ctx context.Context) error {
	if err := c.plane.StopComponent(ctx, kube.Scheduler); err != nil {
		return err
	}
	example, err := c.example("kube-scheduler-plugin.yaml")
	if err != nil {
		return err
	}
	var configuration map[string]any
	if err := yaml.Unmarshal(example, &configuration); err != nil {
		return fmt.Errorf("read the plugin's example: %w", err)
	}
	admin := c.plane.AdminKubeconfig()
	connection := map[string]any{"kubeconfig": admin}
	if c.clientRate > 0 {
		connection["qps"], connection["burst"] = c.clientRate, c.clientRate
	}
	configuration["clientConnection"] = connection
	configuration["leaderElection"] = map[string]any{"leaderElect": false}
	content, err := yaml.Marshal(configuration)
	if err != nil {
		return fmt.Errorf("write the scheduler's configuration: %w", err)
	}
	file := filepath.Join(c.dir, "scheduler.yaml")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return fmt.Errorf("write the scheduler's configuration: %w", err)
	}
	_, err = c.start("kube-scheduler-plugin", c.programs.scheduler, "--config="+file, "--bind-address=127.0.0.1",
		"--authentication-kubeconfig="+admin, "--authorization-kubeconfig="+admin)
	if err != nil {
		return err
	}
	return carve.Until(ctx, waitTimeout, "the scheduler with the plugin runs", func(ctx context.Context) error {
		_, err := c.schedulerSeconds(ctx)
		return err
	})
}
