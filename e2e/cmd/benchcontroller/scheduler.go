package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/kube"
)

// carveScheduler is the value of -scheduler that is not empty.
const carveScheduler = "carve-scheduler"

// schedulerName is what Pods name; empty for the default.
func (c *cluster) schedulerName() string {
	if c.scheduler == carveScheduler {
		return "carve"
	}
	return ""
}

// useScheduler puts carve-scheduler in the place of the cluster's kube-scheduler if that is to be measured, with
// the configuration that the component has.
func (c *cluster) useScheduler(ctx context.Context) error {
	if c.scheduler != carveScheduler {
		return nil
	}
	if err := c.plane.StopComponent(ctx, kube.Scheduler); err != nil {
		return err
	}
	component, err := os.ReadFile(filepath.Join(c.programs.root, "deploy", "components", "scheduler", "config.yaml"))
	if err != nil {
		return fmt.Errorf("read the scheduler's configuration: %w", err)
	}
	var configMap corev1.ConfigMap
	var configuration map[string]any
	if err := yaml.UnmarshalStrict(component, &configMap); err != nil {
		return fmt.Errorf("read the scheduler's ConfigMap: %w", err)
	}
	if err := yaml.UnmarshalStrict([]byte(configMap.Data["kube-scheduler.yaml"]), &configuration); err != nil {
		return fmt.Errorf("read the scheduler's configuration: %w", err)
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
	_, err = c.start("carve-scheduler", c.programs.scheduler, "--config="+file, "--bind-address=127.0.0.1",
		"--authentication-kubeconfig="+admin, "--authorization-kubeconfig="+admin)
	if err != nil {
		return err
	}
	return carve.Until(ctx, waitTimeout, "carve-scheduler runs", func(ctx context.Context) error {
		_, err := c.schedulerSeconds(ctx)
		return err
	})
}
