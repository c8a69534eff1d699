package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

func (c *client) snapshots() *cobra.Command {
	return &cobra.Command{
		Use: "snapshots", Short: "List the snapshots of thin volumes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, l lvmdv1.LVMDClient) error {
				var all []*lvmdv1.Snapshot
				for token := ""; ; {
					page, err := l.ListSnapshots(ctx, &lvmdv1.ListSnapshotsRequest{PageSize: 500, PageToken: token})
					if err != nil {
						return err
					}
					all = append(all, page.GetSnapshots()...)
					if token = page.GetNextPageToken(); token == "" {
						return c.printSnapshots(cmd.OutOrStdout(), all...)
					}
				}
			})
		},
	}
}

func (c *client) snapshot() *cobra.Command {
	return &cobra.Command{
		Use: "snapshot NAME VOLUME", Short: "Take a snapshot of the thin volume with the id VOLUME", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, l lvmdv1.LVMDClient) error {
				resp, err := l.CreateSnapshot(ctx, &lvmdv1.CreateSnapshotRequest{Name: args[0], SourceVolumeId: args[1]})
				if err != nil {
					return err
				}
				return c.printSnapshots(cmd.OutOrStdout(), resp.GetSnapshot())
			})
		},
	}
}

func (c *client) deleteSnapshot() *cobra.Command {
	return &cobra.Command{
		Use: "delete-snapshot ID", Short: "Delete a snapshot by its id", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, l lvmdv1.LVMDClient) error {
				// Deleting a missing snapshot succeeds, which would hide a mistyped id.
				if _, err := l.GetSnapshot(ctx, &lvmdv1.GetSnapshotRequest{Id: args[0]}); err != nil {
					return err
				}
				_, err := l.DeleteSnapshot(ctx, &lvmdv1.DeleteSnapshotRequest{Id: args[0]})
				return err
			})
		},
	}
}

func (c *client) printSnapshots(w io.Writer, snapshots ...*lvmdv1.Snapshot) error {
	rows := [][]string{{"ID", "NAME", "CLASS", "SIZE", "SOURCE", "READY", "CONDITIONS"}}
	messages := make([]proto.Message, 0, len(snapshots))
	for _, s := range snapshots {
		messages = append(messages, s)
		rows = append(rows, []string{s.GetId(), s.GetName(), s.GetDeviceClass(), bytesText(s.GetSizeBytes()), s.GetSourceVolumeId(),
			fmt.Sprint(s.GetReady()), conditionsText(s.GetConditions())})
	}
	return c.print(w, messages, rows)
}
