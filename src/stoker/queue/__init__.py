"""What every front end needs: options, job files, submit, control, views."""
