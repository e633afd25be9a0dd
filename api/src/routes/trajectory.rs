//! What is kept of a job beside its result.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use contract::openai::ErrorEnvelope;
use contract::openai::native::EmptiedBody;
use contract::{Job, JobState, Trajectory, TrajectoryMode, TrajectoryObject};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::routes::jobs::{PathText, job_id};
use crate::state::AppState;
use crate::{headers, results};

/// A job's trajectory: everything that is needed to run it again and get the same, or without what was said.
///
/// Which of the two, or none, the server's setting for the job's tenant said when the job was accepted.
#[utoipa::path(get, path = "/v1/jobs/{id}/trajectory", tag = "jobs",
    params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The trajectory", body = TrajectoryObject),
        (status = 404, description = "No such job (`job_not_found`), or none is kept (`no_trajectory`): trajectories are \
                                      off, or the job did not succeed", body = ErrorEnvelope),
        (status = 410, description = "Its payload's time is over (`job_emptied`); with what is left of it", body = EmptiedBody),
        (status = 409, description = "The job has not ended yet (`job_not_ended`)", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn trajectory(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Response, ApiError> {
    let job = results::kept(results::job(&state, &caller.tenant, &job_id(path)?).await?)?;
    if job.trajectory == TrajectoryMode::Off {
        return Err(ApiError::NoTrajectory {
            reason: "it was accepted with `store: false`, or while trajectories were off".to_owned(),
        });
    }
    match job.state {
        JobState::Succeeded => {}
        JobState::Queued | JobState::Running => return Err(ApiError::NotEnded { state: job.state }),
        JobState::Failed | JobState::Cancelled | JobState::Expired => {
            return Err(ApiError::NoTrajectory { reason: format!("it ended as {}", job.state) });
        }
    }
    let (job, kept) = read(&state, job).await?;
    let mut response = Json(TrajectoryObject::new(kept, job.segment.clone())).into_response();
    headers::describe(response.headers_mut(), &job);
    Ok(response)
}

async fn read(state: &AppState, job: Job) -> Result<(Job, Trajectory), ApiError> {
    // A redacted one was archived on its own: what is shown is what is kept, not what would be.
    if let (TrajectoryMode::Redacted, Some(place)) = (job.trajectory, &job.segment) {
        let frame = match results::frame(state, place).await {
            // Removed since the row was read, perhaps.
            Err(ApiError::Objects(err @ object_store::Error::NotFound { .. })) => {
                results::kept(results::job(state, &job.tenant, &job.id).await?)?;
                return Err(ApiError::Objects(err));
            }
            frame => frame?,
        };
        let kept = Trajectory::from_frame(&frame)?;
        return Ok((job, kept));
    }
    let finished = results::finished(state, job).await?;
    if finished.record.is_none() && finished.job.is_gone() {
        return Err(ApiError::emptied(&finished.job));
    }
    // A succeeded row without a record is not what the store promises.
    let record = finished.record.ok_or(ApiError::Internal)?;
    let kept = Trajectory::of(record, finished.job.trajectory).ok_or(ApiError::Internal)?;
    Ok((finished.job, kept))
}
